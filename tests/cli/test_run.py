"""`gpushare run` against a real appliance: real processes on the simulated card."""

import json
import re
import signal
import subprocess

import pytest

from tests.cli.support import ENTRY, environment, gpushare
from tests.support.appliance import WORKLOAD, until
from tests.support.eventually import PATIENCE


def run(appliance, *words, **more):
    return gpushare("run", *words, environ=appliance.environ | more)


@pytest.fixture
def follow(appliance, start):
    """An attached run that has said its first line, "ready"."""

    def follow(*words):
        process = start("run", *words, environ=appliance.environ)
        assert process.stdout.readline() == "ready\n"
        return process

    return follow


def ended(process):
    """Exit code of an attached run, and the output and remarks that were not read yet."""
    out, err = process.stdout.read(), process.stderr.read()
    return process.wait(60), out, err


@pytest.mark.parametrize("code", [0, 7, 125])
def test_output_and_exit_code_are_the_containers(appliance, code):
    done = run(appliance, "local", "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (code, ["err", "out"], "")


def test_a_program_that_a_signal_ended_exits_as_in_a_shell(appliance):
    assert run(appliance, "local", "sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV


def test_every_byte_of_a_large_output_arrives_in_order(appliance):
    done = run(appliance, "local", "seq", "1", "400000")
    assert done.stdout == "".join(f"{number}\n" for number in range(1, 400_001))


def test_options_after_the_image_belong_to_the_command(appliance):
    done = run(appliance, "--name", "mine", "local", "echo", "--name", "theirs", "-d", "--rm")
    assert done.stdout == "--name theirs -d --rm\n"


def test_what_was_given_is_what_is_launched(appliance):
    done = run(
        appliance, "--name", "all-of-it", "--gpu-memory", "512MiB", "--priority", "3", "--fail", "--max-wait", "2m",
        "--ttl", "1h", "--guaranteed", "--gpus", "all", "-e", "GIVEN=a=b", "-e", "TAKEN", "-e", "MISSING",
        "local", "sh", "-c", 'echo "$GIVEN $TAKEN ${MISSING-unset}"', TAKEN="from here",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "a=b from here unset\n")
    made = appliance.named("all-of-it")
    gpu = appliance.api("GET", "gpus/")["results"][0]["uuid"]
    assert [(held["uuid"], held["quota"]) for held in made["gpus"]] == [(gpu, 512 * 2**20)]
    wanted = {"priority": 3, "on_shortage": "fail", "max_wait_seconds": 120, "ttl_seconds": 3600, "guaranteed": True}
    assert {name: made[name] for name in wanted} == wanted


def test_the_papers_name_of_the_quota_works_and_gpus_go_by_index(appliance):
    done = run(appliance, "--name", "paper", "--nvidia-memory", "256m", "--gpus", "device=0", "local", "true")
    assert done.returncode == 0
    assert appliance.named("paper")["gpus"][0]["quota"] == 256 * 2**20


def test_detached_prints_the_id_and_returns(appliance):
    done = run(appliance, "-d", "--name", "behind", "local", "sleep", "600")
    made = appliance.named("behind")
    assert (done.returncode, done.stdout, done.stderr) == (0, made["id"] + "\n", "")
    assert made["state"] == "running"


def test_detached_with_json_prints_the_container(appliance):
    done = run(appliance, "-d", "--json", "local", "sleep", "600")
    assert json.loads(done.stdout)["id"] == appliance.containers()[0]["id"]


def test_with_rm_the_container_is_gone_afterwards_and_the_exit_code_known(appliance):
    assert run(appliance, "--rm", "--name", "gone", "local", "sh", "-c", "exit 3").returncode == 3
    until(lambda: not appliance.containers(name="gone"))


def test_ctrl_c_lets_the_program_end_by_itself(follow):
    process = follow("local", "sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep .05; done")
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert (code, out.splitlines()[-1]) == (5, "bye")  # before it, sh may remark on its own child
    assert re.fullmatch(r"gpushare: stopping \S+; Ctrl-C again kills it at once\n", err)


def test_sigterm_is_passed_on_like_ctrl_c(follow):
    process = follow("local", "sh", "-c", "trap 'exit 6' TERM; echo ready; while :; do sleep .05; done")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 6


DEAF = ("local", "sh", "-c", "trap '' TERM INT; echo ready; while :; do sleep .05; done")


def test_a_second_ctrl_c_kills_what_would_not_stop(follow):
    process = follow("--stop-timeout", "600", *DEAF)
    process.send_signal(signal.SIGINT)
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 128 + signal.SIGKILL
    assert "killing" in err


def test_stop_timeout_kills_what_would_not_stop(follow):
    process = follow("--stop-timeout", "0.3", *DEAF)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 128 + signal.SIGKILL


def test_a_suspended_container_says_so_with_place_and_time_and_says_when_it_goes_on(appliance, start):
    holder = appliance.launch("sleep", "600", gpu_memory="900MiB", guaranteed=True)
    process = start("run", "--name", "waiter", "--gpu-memory", "600MiB", "local", WORKLOAD, "--bytes", "400MiB",
                    environ=appliance.environ)  # fmt: skip
    line = process.stderr.readline()
    since = re.fullmatch(r"gpushare: waiter is suspended since (\d\d:\d\d:\d\d), 1st in the queue\. Needs \S.*\n", line)
    assert since, line
    assert appliance.named("waiter")["state"] == "suspended"
    appliance.api("POST", f"containers/{holder['id']}/kill/", {})
    code, _, err = ended(process)
    assert code == 0
    assert re.fullmatch(r"gpushare: waiter continues after .+ s\n", err)


def test_a_paused_container_says_so_and_says_when_it_goes_on(appliance, follow, tmp_path):
    go = tmp_path / "go"
    process = follow(
        "--name", "frozen", "local", "sh", "-c", f"echo ready; until [ -e {go} ]; do sleep .05; done; exit 4"
    )
    made = appliance.named("frozen")
    appliance.api("POST", f"containers/{made['id']}/pause/", {})
    assert process.stderr.readline() == "gpushare: frozen is paused; to resume it: gpushare resume frozen\n"
    appliance.api("POST", f"containers/{made['id']}/resume/", {})
    assert process.stderr.readline() == "gpushare: frozen continues\n"
    go.touch()
    code, _, err = ended(process)
    assert (code, err) == (4, "")


def test_remarks_are_json_on_stderr_where_json_was_asked_for(follow):
    process = follow("--json", "local", "sh", "-c", "echo ready; exec sleep 600")
    process.send_signal(signal.SIGINT)
    _, out, err = ended(process)
    event = json.loads(err)
    assert (out, event["event"], event["container"]["image"]) == ("", "stopping", "local")


def test_a_closed_output_leaves_the_container_running(appliance, follow):
    process = follow("--name", "talker", "local", "sh", "-c", "echo ready; while :; do echo more; sleep .05; done")
    process.stdout.close()
    assert process.wait(60) == 128 + signal.SIGPIPE
    assert process.stderr.read() == "gpushare: output closed; talker keeps running; to end it: gpushare kill talker\n"
    process.stderr.close()
    assert appliance.named("talker")["state"] == "running"


def test_output_that_cannot_be_written_is_an_error(appliance):
    """On a full disk: nobody is to take what was written for the whole."""
    words = ["sh", "-c", '"$@" >/dev/full', "sh", *ENTRY, "run", "--name", "full", "local", "sh", "-c", "echo a"]
    done = subprocess.run(words, env=environment(appliance.environ), capture_output=True, text=True, timeout=PATIENCE)
    said = "gpushare: output cannot be written here: No space left on device\n"
    assert (done.returncode, done.stdout, done.stderr) == (125, "", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-image"], "IMAGE: "),
        (["--gpu-memory", "2GiB", "local"], "--gpu-memory: "),
        (["--gpu-memory", "lots", "local"], "--gpu-memory: "),
        (["--gpus", "GPU-nowhere", "local"], "--gpus: "),
        (["--name", "not a name", "local"], "--name: "),
        (["-e", "LD_PRELOAD=/x.so", "local"], "-e: "),
        (["--priority", "5000", "local"], "--priority: "),
    ],
)
def test_a_refused_launch_is_one_line_with_the_option_and_125(appliance, words, said):
    done = run(appliance, *words)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith(f"gpushare: {said}")
    assert done.stderr.count("\n") == 1
    assert appliance.containers() == []


@pytest.mark.parametrize(
    ("program", "code"), [("/no/such", 127), ("no-such-program", 127), ("/etc/passwd", 126), ("/etc", 126)]
)
def test_a_program_that_cannot_run_ends_as_with_docker(appliance, program, code):
    done = run(appliance, "local", program)
    assert (done.returncode, done.stdout) == (code, "")
    assert program in done.stderr


def test_a_program_that_is_refused_memory_beyond_its_quota_is_reported(appliance):
    """The program alone says that memory is out, and not whose limit that was."""
    done = run(appliance, "--name", "greedy", "--gpu-memory", "512MiB", "local", WORKLOAD, "--bytes", "1GiB")
    assert done.returncode != 0
    text = "gpushare: greedy asked for 256 MiB beyond its quota of 512 MiB and was refused; for more: --gpu-memory"
    assert done.stderr.splitlines()[-1] == text
    assert done.stderr.count("was refused") == 1

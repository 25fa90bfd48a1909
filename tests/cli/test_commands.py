"""The commands that look and steer, against a real appliance."""

import fcntl
import json
import os
import pty
import re
import signal
import stat
import termios

import pytest

from tests.cli.support import gpushare
from tests.support.appliance import WORKLOAD, until


@pytest.fixture
def shell(appliance):
    """Runs one command line, logged in."""
    return lambda *words, **more: gpushare(*words, environ=appliance.environ | more)


def test_ps_lists_what_lives_and_with_all_what_ended(appliance, shell):
    appliance.launch("sleep", "600", name="living", gpu_memory="256MiB")
    assert shell("run", "--name", "dead", "local", "sh", "-c", "exit 3").returncode == 3
    heads, *rows = shell("ps").stdout.splitlines()
    assert heads.split() == ["ID", "NAME", "OWNER", "IMAGE", "STATE", "GPU", "USED", "QUOTA", "PEAK", "AGE"]
    assert [row.split()[1:6] for row in rows] == [["living", "admin", "local", "running", "0"]]
    assert "256 MiB" in rows[0]
    dead = next(row for row in shell("ps", "-a").stdout.splitlines() if " dead " in row)
    assert "failed (3)" in dead


def test_lists_are_filtered_sorted_and_shaped_and_what_matches_is_killed(appliance, shell):
    for name in ("one", "two"):
        appliance.launch("sleep", "600", name=name)
    assert shell("ps", "--sort", "-name", "--format", "name,owner").stdout.split() == [
        "NAME", "OWNER", "two", "admin", "one", "admin"
    ]  # fmt: skip
    lines = shell("ps", "--sort", "name", "--format", "json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["one", "two"]
    assert "no such column" in shell("ps", "--sort", "colour").stderr
    assert shell("stats", "--filter", "name=one").stdout.split()[7:9] == ["one", "admin"]
    assert shell("queue", "--filter", "owner=nobody").stdout == "No container waits for GPU memory.\n"
    assert "no container matches" in shell("kill", "--filter", "name=three").stderr
    assert "name containers, or give --filter" in shell("kill").stderr
    assert shell("kill", "--filter", "name=two").stdout.startswith("two: ")
    assert shell("ps", "-q").stdout.count("\n") == 1
    events = [json.loads(line) for line in shell("events", "--from", "1h", "--no-follow", "--json").stdout.splitlines()]
    assert ("killed", "two") in {(event["kind"], event["name"]) for event in events}
    assert [event["id"] for event in events] == sorted({event["id"] for event in events})


def test_stop_inspect_tokens_and_audit(appliance, shell):
    traps = "trap 'exit 7' TERM; while :; do sleep 0.05; done"
    made = appliance.launch("sh", "-c", traps, name="one")
    assert shell("stop", "one", "--note", "the end").returncode == 0
    (ended,) = [json.loads(line) for line in shell("inspect", "one").stdout.splitlines()]
    assert (ended["id"], ended["exit_code"]) == (made["id"], 7)
    heads, entry = shell("audit", "--action", "kill", "-n", "1").stdout.splitlines()
    assert heads.split() == ["WHEN", "WHO", "FROM", "WHAT", "TO"]
    assert entry.split()[-2:] == ["kill", "one"]
    key = shell("tokens", "--create", "night", "--read-only", "--days", "1").stdout.strip()
    with_it = {"GPUSHARE_TOKEN": key}
    assert shell("ps", **with_it).returncode == 0
    assert shell("kill", "one", **with_it).returncode == 1
    number = next(row.split()[0] for row in shell("tokens").stdout.splitlines() if " night " in row)
    assert shell("tokens", "--revoke", number).stdout == f"token {number}: ended\n"
    assert "does not know" in shell("ps", **with_it).stderr or shell("ps", **with_it).returncode == 1


def test_containers_go_by_name_id_and_the_beginning_of_an_id(appliance, shell):
    made = appliance.launch("sleep", "600", name="it")
    for word in ("it", made["id"], made["id"].upper(), made["id"][:8]):
        assert shell("set", word, "--priority", "1").stdout.startswith("it: "), word


def test_an_unknown_word_says_where_to_look(appliance, shell):
    done = shell("kill", "nobody")
    assert (done.returncode, done.stderr) == (1, "gpushare: no container 'nobody': gpushare ps -a lists them\n")


def test_a_name_used_again_means_the_newest(appliance, shell):
    shell("run", "--name", "again", "local", "echo", "old")
    shell("run", "--name", "again", "local", "echo", "new")
    assert shell("logs", "again").stdout == "new\n"


def test_logs_whole_last_lines_and_as_json(appliance, shell):
    shell("run", "--name", "writer", "local", "printf", "one\\ntwo\\nthree")
    assert shell("logs", "writer").stdout == "one\ntwo\nthree"
    assert shell("logs", "-n", "1", "writer").stdout == "three"
    assert [json.loads(line) for line in shell("logs", "--json", "writer").stdout.splitlines()] == [
        {"line": "one"},
        {"line": "two"},
        {"line": "three"},
    ]


def test_logs_follow_until_the_end_and_ctrl_c_leaves_the_container(appliance, shell, start):
    made = appliance.launch("sh", "-c", "echo first; exec sleep 600", name="long")
    reader = start("logs", "-f", "long", environ=appliance.environ)
    assert reader.stdout.readline() == "first\n"
    reader.send_signal(signal.SIGINT)
    assert reader.wait(60) == -signal.SIGINT
    assert appliance.named("long")["state"] == "running"
    second = start("logs", "-f", "long", environ=appliance.environ)
    assert second.stdout.readline() == "first\n"
    appliance.api("POST", f"containers/{made['id']}/kill/", {})
    assert (second.wait(60), second.stdout.read(), second.stderr.read()) == (0, "", "")


def test_resume_says_of_one_without_room_that_it_comes_back(appliance, shell):
    appliance.launch(WORKLOAD, "--bytes", "200MiB", "--hold", "600", name="out", gpu_memory="400MiB")
    until(lambda: appliance.named("out")["gpus"][0]["used"] > 200 << 20)
    assert shell("pause", "--free", "out").stdout == "out: swapped\n"
    appliance.launch("sleep", "600", name="holder", gpu_memory="900MiB", guaranteed=True)
    text = "out: swapped. It continues when its memory is back on its GPU.\n"
    assert shell("resume", "out").stdout == text


def test_pause_resume_and_kill_say_what_became_of_each(appliance, shell):
    for name in ("a", "b"):
        appliance.launch("sleep", "600", name=name)
    assert shell("pause", "a", "b", "--note", "maintenance").stdout == "a: paused\nb: paused\n"
    assert {each["state"] for each in appliance.containers()} == {"paused"}
    assert shell("resume", "a", "b").stdout == "a: running\nb: running\n"
    done = shell("kill", "a", "nobody", "b")
    assert (done.returncode, done.stdout) == (1, "a: killed\nb: killed\n")
    assert done.stderr == "gpushare: nobody: no container 'nobody': gpushare ps -a lists them\n"
    assert appliance.containers() == []


def test_what_takes_longer_than_the_appliance_waits_is_followed_to_its_end(appliance, shell):
    """REST answers 202 after 5 seconds; the command line asks on until it is done."""
    appliance.launch("sh", "-c", "trap '' TERM; echo ready; while :; do sleep .05; done", name="deaf")
    until(lambda: shell("logs", "deaf").stdout == "ready\n")
    assert shell("kill", "--grace", "6", "deaf").stdout == "deaf: killed\n"


def test_rm_wants_the_container_ended_or_force(appliance, shell):
    appliance.launch("sleep", "600", name="busy")
    refused = shell("rm", "busy")
    assert (refused.returncode, refused.stderr) == (1, 'gpushare: "busy" has not ended. Kill it first\n')
    assert shell("rm", "-f", "busy").stdout == "busy: removed\n"
    assert appliance.containers(name="busy") == []


def test_set_changes_quota_and_priority(appliance, shell):
    appliance.launch("sleep", "600", name="tuned", gpu_memory="256MiB")
    done = shell("set", "tuned", "--gpu-memory", "384MiB", "--priority", "5")
    assert done.stdout == "tuned: quota 384 MiB, priority 5\n"
    row = appliance.named("tuned")
    assert (row["gpus"][0]["quota"], row["priority"]) == (384 * 2**20, 5)
    assert "--gpu-memory: " in shell("set", "tuned", "--gpu-memory", "64GiB").stderr


def test_set_changes_weight_and_limit_in_computing(appliance, shell):
    shell("run", "-d", "--name", "share", "--compute-weight", "300", "--compute-limit", "30%", "local", "sleep", "600")
    made = appliance.named("share")
    assert (made["compute_weight"], made["compute_limit"]) == (300, 30)
    done = shell("set", "share", "--compute-weight", "50", "--compute-limit", "40%")
    assert done.stdout == "share: quota 1 GiB, priority 0, weight 50, limit 40 %\n"
    assert shell("set", "share", "--compute-limit", "none").stdout == "share: quota 1 GiB, priority 0, weight 50\n"
    assert "--compute-limit: half is not a percentage" in shell("set", "share", "--compute-limit", "half").stderr
    assert "--compute-weight: " in shell("set", "share", "--compute-weight", "0").stderr


def test_gpus_says_how_containers_share_one(appliance, shell):
    done = shell("gpus", "0", "--compute", "shared")
    assert done.returncode == 0
    assert re.fullmatch(r"GPU 0: Containers compute on it at once.*\.\n", done.stdout)
    assert [card["compute"] for card in json.loads(shell("gpus", "--json").stdout)] == ["shared"]
    assert shell("gpus", "7", "--compute", "shared").stderr == "gpushare: no GPU 7: gpushare gpus lists them\n"


def test_a_gpu_is_taken_out_of_service_and_put_back(appliance, shell):
    done = shell("gpus", "0", "--drain", "--reason", "new fans")
    assert done.stdout == "GPU 0 takes no new containers. Its containers continue, or are moved.\n"
    assert "out of service: new fans" in shell("gpus").stdout
    assert "out of service" in shell("run", "local", "--", "true").stderr
    assert shell("gpus", "0", "--undrain").stdout == "GPU 0 takes containers again.\n"
    assert "in service" in shell("gpus").stdout
    assert shell("gpus", "--drain").stderr == "gpushare: a GPU is missing: gpushare gpus 1 --drain --reason TEXT\n"


def test_queue_gpus_and_top_show_who_waits_for_what(appliance, shell):
    assert shell("queue").stdout == "No container waits for GPU memory.\n"
    appliance.launch("sleep", "600", name="holder", gpu_memory="900MiB", guaranteed=True)
    appliance.launch(WORKLOAD, "--bytes", "400MiB", name="waiter", gpu_memory="600MiB")
    until(lambda: appliance.named("waiter")["state"] == "suspended")
    heads, row = shell("queue").stdout.splitlines()
    assert heads.split() == ["#", "NAME", "OWNER", "NEEDS", "SINCE", "WHY"]
    assert row.split()[:3] == ["1", "waiter", "admin"]
    assert json.loads(shell("queue", "--json").stdout)[0]["name"] == "waiter"
    cards = shell("gpus").stdout.splitlines()
    assert cards[0].split() == [
        "#",
        "NAME",
        "UUID",
        "CAPACITY",
        "CHARGED",
        "FREE",
        "REAL",
        "FOREIGN",
        "LOAD",
        "COMPUTE",
        "STATE",
    ]

    def one_figure():
        """900 of 1024 MiB are reserved, though nothing of it is used; a context of the waiter takes 66 of the rest."""
        (card,) = json.loads(shell("gpus", "--json").stdout)
        outputs = shell("queue").stdout, shell("gpus").stdout
        return card["free"] == 58 * 2**20 and "; 58 MiB is free." in outputs[0] and " 58 MiB " in outputs[1]

    until(one_figure)
    assert len(cards) == 2
    screen = shell("top").stdout
    assert "1 running, 1 suspended" in screen
    assert screen.count("waiter") == 2  # among the containers and in the queue
    seen = json.loads(shell("top", "--once", "--json").stdout)
    assert {name: len(found) for name, found in seen.items()} == {"gpus": 1, "containers": 2, "queue": 1}


@pytest.fixture
def terminal():
    """A terminal: its screen and keyboard, and what a program takes for its own."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def read_until(ours, words):
    seen = b""
    while words not in seen:
        seen += os.read(ours, 65536)


def test_login_tries_the_token_and_keeps_it_for_its_owner_alone(appliance, tmp_path):
    away = {"GPUSHARE_CONFIG": str(tmp_path / "config")}
    wrong = gpushare("login", appliance.url, "--token-stdin", environ=away, stdin="gps_wrong\n")
    copy = "copy a whole token, from your page Me or the file admin-token on the host"
    assert (wrong.returncode, wrong.stderr) == (1, f"gpushare: the appliance does not know this token: {copy}\n")
    empty = gpushare("login", appliance.url, "--token-stdin", environ=away, stdin="\n")
    assert (empty.returncode, empty.stderr) == (1, f"gpushare: no token was given: {copy}\n")
    assert not (tmp_path / "config").exists()
    done = gpushare("login", appliance.url, "--token-stdin", environ=away, stdin=appliance.token + "\n")
    kept = tmp_path / "config" / "login.json"
    assert (done.stdout, done.stderr) == (f"Logged in to {appliance.url} as admin; stored in {kept}\n", "")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert gpushare("ps", environ=away).returncode == 0
    assert gpushare("logout", environ=away).returncode == 0
    assert "not logged in" in gpushare("ps", environ=away).stderr


def test_login_with_a_password_makes_a_token(appliance, tmp_path, start, terminal):
    ours, theirs = terminal
    own = {"GPUSHARE_CONFIG": str(tmp_path)}
    take_terminal = lambda: fcntl.ioctl(0, termios.TIOCSCTTY)  # noqa: E731 - passwords are asked for on the controlling one
    process = start(
        "login", appliance.url, "--user", "admin",
        environ=own, stdin=theirs, start_new_session=True, preexec_fn=take_terminal,
    )  # fmt: skip
    read_until(ours, b"Password")
    os.write(ours, appliance.token.encode() + b"\n")  # the admin's first password is the first token
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "as admin" in out
    assert json.loads((tmp_path / "login.json").read_text())["token"] != appliance.token


def test_on_the_appliances_own_host_no_login_is_needed(appliance):
    done = gpushare("ps", "-q", environ={"GPUSHARE_HOME": str(appliance.home), "PORT": appliance.port})
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_offers_the_names_of_living_containers(appliance, shell):
    appliance.launch("sleep", "600", name="train-1")
    asked = {"_GPUSHARE_COMPLETE": "complete_bash", "COMP_WORDS": "gpushare pause tr", "COMP_CWORD": "2"}
    until(lambda: shell(**asked).stdout.split() == ["train-1"])  # an answer later than a person waits offers nothing


def test_an_address_that_is_no_appliance_is_named(appliance, shell):
    done = shell("ps", GPUSHARE_URL=f"{appliance.url}/admin")
    assert done.returncode == 1
    assert done.stderr.startswith("gpushare: the server answered ")
    assert done.stderr.count("\n") == 1


def test_report_and_peak_tell_what_was_held(appliance, shell):
    """Held, let go, and asked for: the same figures as REST gives them."""
    for _ in range(2):
        assert shell("run", "--gpu-memory", "512MiB", "local", WORKLOAD, "--bytes", "300MiB").returncode == 0
    until(lambda: any(row["suggestion"] for row in appliance.api("GET", "peaks/?image=local")["results"]))
    heads, *rows = shell("peak", "local", WORKLOAD, "--bytes", "300MiB").stdout.splitlines()
    assert heads.split() == ["IMAGE", "COMMAND", "RUNS", "REJECTED", "PEAK", "SUGGESTED"]
    assert [row.split()[-6:] for row in rows] == [["2", "0", "366", "MiB", "448", "MiB"]]  # 300 and a context of 66
    assert shell("peak", "never-run").stdout == "No finished run has used GPU memory yet.\n"
    span, heads, *rows = shell("report", "--from", "1h").stdout.splitlines()
    assert " to " in span
    assert heads.split() == ["USER", "CONTAINERS", "GIB·HOURS", "GPU·HOURS", "PEAK", "SUSPENDED", "REJECTS", "COST"]
    assert [row.split()[0] for row in rows] == ["admin", "total"]
    report = json.loads(shell("report", "--from", "1h", "--group-by", "image", "--json").stdout)
    assert [row["group"] for row in report["rows"]] == ["local"]
    csv = shell("report", "--from", "1h", "--csv").stdout.splitlines()
    assert csv[0].startswith("user,containers,vram_gib_hours,")
    assert not csv[-1].startswith("total,")


def test_a_report_over_an_empty_range_or_no_time_is_refused(shell):
    assert shell("report", "--from", "1h", "--to", "2h").stderr.startswith("gpushare: --from: The range is empty")
    done = shell("report", "--from", "yesterday")
    assert (
        done.stderr == "gpushare: --from: 'yesterday' is not a time: write 2026-11-01, 2026-11-01T08:00 or 7d (ago)\n"
    )

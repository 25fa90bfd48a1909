"""`gpushare exec`: one more program in a container that runs, on both engines, under its container's quota."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.demo.image import build as demo_image
from tests.cli.support import ENTRY, environment, gpushare
from tests.support.appliance import WORKLOAD, Appliance, until
from tests.support.dockerd import IMAGE, Dockerd, dockerd
from tests.support.running import runs, seconds
from tests.support.terminal import Terminal

__all__ = ["dockerd"]
MIB = 2**20


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    environ = {"GPUSHARE_ENGINE": request.param}
    if request.param == "docker":
        dockerd: Dockerd = request.getfixturevalue("dockerd")
        environ["GPUSHARE_DOCKER_HOST"] = dockerd.address
    path = f"{Path(WORKLOAD).parent}:{os.environ['PATH']}"
    made = Appliance(tmp_path_factory.mktemp("exec") / "var", **environ, PATH=path)
    made.image = IMAGE if request.param == "docker" else "local"  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.fixture
def appliance(running: Appliance) -> Iterator[Appliance]:
    yield running
    running.end_all()


def launched(appliance: Appliance, name: str, *command: str, **fields: Any) -> dict[str, Any]:
    image = appliance.image  # type: ignore[attr-defined]
    body = {"image": image, "command": command or ("sleep", "600"), "name": name, **fields}
    made: dict[str, Any] = appliance.api("POST", "containers/", body)
    until(lambda: appliance.named(name)["state"] == "running")
    return made


def terminal(appliance: Appliance, *words: str) -> Terminal:
    return Terminal([*ENTRY, "exec", *words], environment(appliance.environ))


def test_output_errors_and_exit_code_are_the_programs_own(appliance: Appliance) -> None:
    launched(appliance, "one")
    done = gpushare("exec", "one", "sh", "-c", "echo out; echo wrong >&2; exit 7", environ=appliance.environ)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "wrong\n")
    numbers = "".join(f"{number}\n" for number in range(200_000))
    done = gpushare("exec", "-i", "one", "cat", environ=appliance.environ, stdin=numbers)
    assert (done.returncode, done.stdout, done.stderr) == (0, numbers, "")


def test_without_a_command_it_is_a_shell_in_a_terminal_that_follows_ours(appliance: Appliance) -> None:
    launched(appliance, "shelled")
    with terminal(appliance, "shelled") as it:
        it.type("stty size\r")
        it.until("33 111\r\n")
        it.resize(44, 99)
        it.type("while [ \"$(stty size)\" != '44 99' ]; do sleep 0.1; done; echo follow''ed\r")
        it.until("followed\r\n")
        # What is typed before the shell has put the program before itself reaches the shell, which does not mind.
        it.type("sh -c 'echo be''gun; exec sleep 600'\r")
        it.until("begun\r\n")
        it.type("\x03")
        it.type("echo status-$?\r")
        it.until("status-130")
        it.type("exit 5\r")
        assert it.exit_code() == 5
        assert it.settings() == it.before
    assert appliance.named("shelled")["state"] == "running"


def test_its_memory_is_its_containers_and_so_is_the_quota(
    appliance: Appliance, settings: Any, request: pytest.FixtureRequest
) -> None:
    image, workload = "local", WORKLOAD
    if appliance.image == IMAGE:  # type: ignore[attr-defined]
        settings.GPUSHARE_DOCKER_HOST = request.getfixturevalue("dockerd").address
        image, workload = demo_image(), "workload"
    launched(appliance, "quota", workload, "--bytes", "1MiB", "--hold", "600", image=image, gpu_memory="600MiB")
    before = until(lambda: _used(appliance, "quota"))
    taking = ("exec", "-t", "quota", workload, "--bytes", "200MiB", "--hold", "600", "--check", "1MiB")
    with Terminal([*ENTRY, *taking], environment(appliance.environ)):
        until(lambda: _used(appliance, "quota") >= before + 200 * MIB)
        more = ("exec", "quota", workload, "--bytes", "400MiB", "--hold", "0", "--check", "1MiB")
        refused = gpushare(*more, environ=appliance.environ, timeout=60)
        assert refused.returncode not in (0, 125)
        assert "memory" in (refused.stdout + refused.stderr).lower()
        assert _used(appliance, "quota") <= 600 * MIB
    until(lambda: _used(appliance, "quota") < 200 * MIB)  # our end of it was killed, and so it has ended


def _used(appliance: Appliance, name: str) -> int:
    return sum(int(gpu["used"]) for gpu in appliance.named(name)["gpus"])


def test_ctrl_c_without_a_terminal_ends_what_was_started(appliance: Appliance, start: Any) -> None:
    launched(appliance, "stopped")
    long = seconds()
    process = start("exec", "stopped", "sh", "-c", f"echo begun; exec sleep {long}", environ=appliance.environ)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    until(lambda: not runs("sleep", long))


def test_the_scheduler_is_killed_and_nothing_that_was_started_stays(appliance: Appliance) -> None:
    launched(appliance, "orphaned")
    long = seconds()
    with terminal(appliance, "-t", "orphaned", "sleep", long) as it:
        until(lambda: runs("sleep", long))
        os.kill(appliance.parts()["scheduler"], signal.SIGKILL)
        assert it.exit_code() == 125
        assert "The connection to the scheduler was lost" in it.seen.decode()
    until(lambda: not runs("sleep", long))
    until(lambda: appliance.named("orphaned")["state"] == "running")


def test_the_web_process_is_killed_and_nothing_that_was_started_stays(appliance: Appliance) -> None:
    launched(appliance, "cut-off")
    long = seconds()
    with terminal(appliance, "-t", "cut-off", "sleep", long) as it:
        until(lambda: runs("sleep", long))
        os.kill(appliance.parts()["web"], signal.SIGKILL)
        assert it.exit_code() == 125
    until(lambda: not runs("sleep", long))


def test_a_kill_of_the_container_ends_it(appliance: Appliance) -> None:
    made = launched(appliance, "killed")
    long = seconds()
    with terminal(appliance, "-t", "killed", "sleep", long) as it:
        until(lambda: runs("sleep", long))
        appliance.api("POST", f"containers/{made['id']}/kill/", {})
        it.exit_code()
    until(lambda: not runs("sleep", long))
    done = gpushare("exec", "killed", "true", environ=appliance.environ)
    assert (done.returncode, done.stderr) == (125, "gpushare: The container has ended\n")


def test_what_is_started_is_in_no_log_and_that_it_was_is(appliance: Appliance) -> None:
    made = launched(appliance, "audited")
    gpushare("exec", "audited", "echo", "a-secret-word", environ=appliance.environ)
    entries = until(lambda: _recorded(appliance, made["id"]))
    assert {entry["action"] for entry in entries} >= {"exec-opened", "exec-closed"}
    assert "a-secret-word" not in str(entries)
    assert "a-secret-word" not in Path(appliance._log.name).read_text()


def _recorded(appliance: Appliance, container: str) -> list[dict[str, Any]]:
    """What the audit log has of it, once a console was closed."""
    entries = appliance.api("GET", "audit/?page_size=50")["results"]
    found = [entry for entry in entries if entry["subject"] == container]
    return found if any(entry["action"].endswith("closed") for entry in found) else []

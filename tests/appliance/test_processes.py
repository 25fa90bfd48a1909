"""`make up` is a parent and two processes: each may die without the others, and no container with them."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.datagrams import Datagrams
from tests.support.appliance import ROOT, WORKLOAD, Appliance, http, until
from tests.support.eventually import PATIENCE
from tests.support.own_home import clean_environ
from tests.support.running import ended
from web.services.issuing import hint_channel

HOLDS = [WORKLOAD, "--bytes", "64MiB", "--hold", "3600"]


@pytest.fixture
def appliance(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Appliance]:
    running = Appliance(tmp_path / getattr(request, "param", "home"))
    yield running
    if running.process.poll() is None:
        running.close()


def ready(appliance: Appliance) -> bool:
    try:
        return http.get(f"{appliance.url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def hold(appliance: Appliance) -> dict[str, Any]:
    """A container whose program holds memory, and its process id on the host."""
    made = appliance.launch(*HOLDS, name="holds", gpu_memory="512MiB")
    until(lambda: appliance.named("holds")["gpus"][0]["used"] >= 64 << 20)
    return made


def program(appliance: Appliance) -> int:
    """The process id of the container's program."""
    (running,) = appliance.home.glob("processes/*/running.json")
    return int(json.loads(running.read_text())["pid"])


def test_a_web_process_that_dies_is_there_again_and_nobody_else_notices(appliance):
    hold(appliance)
    before, job = appliance.parts(), program(appliance)
    os.kill(before["web"], signal.SIGKILL)
    assert appliance.named("holds")["state"] == "running"  # at once: clients wait meanwhile, they are not refused
    after = until(lambda: len(appliance.parts()) == 2 and appliance.parts())
    assert after["scheduler"] == before["scheduler"]
    assert after["web"] != before["web"]
    assert not ended(job)


def test_a_scheduler_that_dies_is_there_again_with_the_containers_as_they_were(appliance):
    made, job = hold(appliance), program(appliance)
    before = appliance.parts()
    os.kill(before["scheduler"], signal.SIGKILL)
    after = until(lambda: len(parts := appliance.parts()) == 2 and parts != before and parts)
    assert after["web"] == before["web"]
    killed = until(lambda: ready(appliance) and appliance.api("POST", f"containers/{made['id']}/kill/", {}))
    assert killed["state"] == "killed"
    assert ended(job)


def test_both_may_be_killed_ten_times_in_a_row_as_soon_as_they_are_there(appliance):
    """In the middle of their starts, too: nothing adds up that an eleventh start would stumble over."""
    made, job, parent = hold(appliance), program(appliance), Path(f"/proc/{appliance.process.pid}")
    held = len(list((parent / "fd").iterdir()))
    for _ in range(10):
        killed = set(appliance.parts().values())
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        until(lambda killed=killed: len(now := set(appliance.parts().values())) == 2 and not killed & now)
    until(lambda: ready(appliance))
    assert appliance.parts().keys() == {"scheduler", "web"}
    assert len(list((parent / "fd").iterdir())) == held
    assert (appliance.named("holds")["state"], ended(job)) == ("running", False)
    assert appliance.api("POST", f"containers/{made['id']}/kill/", {})["state"] == "killed"


def test_if_the_parent_dies_both_end_and_the_next_start_finds_everything_free(appliance):
    hold(appliance)
    parts, job = appliance.parts(), program(appliance)
    appliance.process.kill()
    appliance.process.wait()
    until(lambda: all(ended(pid) for pid in parts.values()))
    assert not ended(job)
    until(lambda: are_free(appliance))  # a helper process of the scheduler ends a little later
    appliance.process.stdout.close()
    appliance.start()
    assert appliance.named("holds")["state"] == "running"
    assert not ended(job)


def are_free(appliance) -> bool:
    """The port and the lock."""
    try:
        with (
            socket.create_server(("127.0.0.1", int(appliance.port))),
            (appliance.home / "scheduler.lock").open() as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_of_it_but_no_container(appliance, number):
    hold(appliance)
    parts, job = appliance.parts(), program(appliance)
    appliance.process.send_signal(number)
    assert appliance.process.wait(PATIENCE) == 0
    assert all(ended(pid) for pid in parts.values())
    assert not ended(job)
    appliance.process.stdout.close()
    appliance.start()  # and for the fixture, which ends the container


def test_the_scheduler_has_neither_the_port_nor_any_connection_to_it(appliance):
    """What strangers reach is not there to be reached."""
    with socket.create_connection(("127.0.0.1", int(appliance.port))):
        local = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = {words[9] for words in local if words[1].endswith(f":{int(appliance.port):04X}")}
        pid = appliance.parts()["scheduler"]
        held = {os.path.realpath(each).rpartition("/")[2] for each in Path(f"/proc/{pid}/fd").iterdir()}
    assert inodes
    assert not held & {f"socket:[{inode}]" for inode in inodes}


def test_others_may_neither_read_the_home_nor_hold_the_lock(appliance):
    assert stat.S_IMODE(appliance.home.stat().st_mode) & 0o007 == 0
    assert stat.S_IMODE((appliance.home / "scheduler.lock").stat().st_mode) == 0o600


async def test_wishes_and_outcomes_cross_as_hints_without_redis(appliance):
    """Heard by a third process, this one: everybody hears everything and keeps what is theirs."""
    layer = Datagrams(appliance.home / "hints")
    mine = await layer.new_channel()
    await layer.group_add("live", mine)
    made = await asyncio.to_thread(appliance.launch, "sleep", "600")
    async with asyncio.timeout(60):
        assert await layer.receive(hint_channel(1)) == {"type": "wake"}  # of the first and only node
        assert await layer.receive(mine) == {"type": "live.changed"}
        (launch,) = (await asyncio.to_thread(appliance.api, "GET", "commands/"))["results"]
        assert await layer.receive(f"outcome.{launch['id']}") == {"type": "command.done"}
    assert made["state"] == "running"


def test_with_every_hint_lost_commands_are_carried_out_all_the_same(appliance):
    """Their sockets are taken away under both: what is left is that each looks by itself now and then."""
    for path in (appliance.home / "hints").iterdir():
        path.unlink()
    made = appliance.launch(*HOLDS, name="holds", gpu_memory="512MiB")
    assert made["state"] == "running"
    assert appliance.api("POST", f"containers/{made['id']}/kill/", {})["state"] == "killed"


def test_a_second_web_process_over_the_same_home_answers_as_the_first_does(appliance):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = str(listener.fileno())
        second = subprocess.Popen(
            [sys.executable, "manage.py", "runweb", "--fd", number],
            cwd=ROOT, env={**os.environ, "GPUSHARE_HOME": str(appliance.home)}, pass_fds=[listener.fileno()],
        )  # fmt: skip
        first, appliance.url = appliance.url, f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            made = appliance.launch(*HOLDS, name="holds", gpu_memory="512MiB")
            assert made["state"] == "running"
            for url, deed in ((first, "pause"), (appliance.url, "resume"), (first, "kill")):
                appliance.url = url
                state = appliance.api("POST", f"containers/{made['id']}/{deed}/", {})["state"]
                for each in (first, f"http://127.0.0.1:{listener.getsockname()[1]}"):
                    appliance.url = each  # what one has answered, both show
                    assert appliance.containers(name="holds")[0]["state"] == state
        finally:
            appliance.url = first
            second.terminate()
            second.wait(60)


def up(home: Path, **environ: str) -> subprocess.Popen[str]:
    given = {"GPUSHARE_HOME": str(home), "GPUSHARE_GPUS": "sim:1x1GiB", "GPUSHARE_ENGINE": "process", "PORT": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, ROOT / "manage.py", "up"], env=clean_environ() | given | environ, **pipes)


def refused(home: Path, **environ: str) -> str:
    """What it says when it cannot start."""
    process = up(home, **environ)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert out == ""
    return said.strip().splitlines()[-1]


def test_a_port_that_is_taken_ends_the_start_with_a_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(tmp_path, PORT=port)
    assert said.startswith(f"CommandError: Cannot listen on 127.0.0.1:{port}")
    assert "Is the appliance running already?" in said


def test_an_address_that_is_not_this_hosts_is_not_answered_with_another_port(tmp_path):
    for host in ("no-such-host.invalid", "192.0.2.1"):
        said = refused(tmp_path, HOST=host)
        assert said.startswith(f"CommandError: Cannot listen on {host}:0")
        assert said.endswith(
            "HOST has to be an address of this host, or its name: 127.0.0.1 for itself alone, 0.0.0.0 for all."
        )


def test_a_home_that_cannot_be_made_is_named(tmp_path):
    home = tmp_path / "file"
    home.touch()
    for folder in (home, home / "below"):
        said = refused(folder)
        assert said.startswith(f"gpushare: what a start needs in GPUSHARE_HOME cannot be written: {folder}: ")
        assert said.endswith("Choose a folder that may be written: GPUSHARE_HOME=FOLDER")


def test_a_second_scheduler_for_one_home_ends_the_start_with_a_sentence(appliance):
    said = refused(appliance.home)
    assert said.startswith(f"CommandError: Another scheduler already works in {appliance.home}, so this one cannot")
    assert said.endswith("A second appliance needs a folder of its own: GPUSHARE_HOME.")
    assert ready(appliance)


def test_gpus_that_are_not_there_end_the_start_with_a_sentence(tmp_path):
    assert refused(tmp_path, GPUSHARE_GPUS="nonsense").startswith("CommandError: GPUSHARE_GPUS=nonsense is none of:")


def test_it_can_be_stopped_while_it_waits_for_the_engine(tmp_path):
    process = up(tmp_path, GPUSHARE_ENGINE="docker", GPUSHARE_DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert process.stderr is not None
    until(lambda: "WARNING" in process.stderr.readline())
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("appliance", ["my home"], indirect=True)
def test_the_shim_is_loaded_from_a_folder_with_a_space_in_its_name(appliance):
    hold(appliance)

"""ssh into containers, by OpenSSH's own client: who comes in, and what a program and its terminal see of it."""

import asyncio
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from tests.engines.conftest import leaks_sockets
from tests.support.eventually import PATIENCE, eventually, stopped
from tests.support.people import make_user
from tests.support.ssh_lab import (
    Lab,
    a_launch,
    docker_api,
    docker_engine,
    dockerd,
    empty_shim,
    in_docker,
    lab,
    make_key,
    open_engine,
    runs,
)
from web.door import programs, server
from web.models import AuditEntry, Container, SshKey
from web.people import visitor
from web.people.roles import Role

__all__ = ["a_launch", "docker_api", "docker_engine", "dockerd", "empty_shim", "in_docker", "lab", "open_engine"]

pytestmark = [leaks_sockets, pytest.mark.django_db(transaction=True)]


async def test_a_command_has_its_own_outputs_input_and_exit_code(lab: Lab) -> None:
    code, out, err = await lab.ssh("cat; pwd; echo wrong >&2; exit 7", typed=b"typed\n")
    assert (code, out.decode(), err) == (7, f"typed\n{lab.work}\n", b"wrong\n")


async def test_bytes_pass_whole_and_in_any_number(lab: Lab) -> None:
    typed = bytes(range(256)) * 16384
    assert await lab.ssh("cat", typed=typed) == (0, typed, b"")


SLOW = "import sys\nwhile sys.stdin.buffer.raw.read(4096): sum(range(10_000))"


async def test_what_is_typed_faster_than_it_is_taken_is_not_kept_here(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[int]()
    receive = programs.Piped.data_received

    def received(self: Any, data: bytes, datatype: Any) -> None:
        receive(self, data, datatype)
        kept.append(self._untyped + sum(len(each) for each, _ in self._channel._recv_buf))

    monkeypatch.setattr(programs.Piped, "data_received", received)
    assert await lab.ssh(f"exec python3 -c '{SLOW}'", typed=bytes(32 << 20)) == (0, b"", b"")
    assert max(kept) < 6 << 20


async def test_a_terminal_is_one_and_has_the_size_of_the_clients(lab: Lab) -> None:
    code, out, _ = await lab.ssh("-tt", "test -t 0 && stty size && exit 3", typed=b"")
    assert (code, out) == (3, b"24 80\r\n")


async def test_ctrl_c_ends_a_program_on_a_terminal(lab: Lab) -> None:
    # dash itself may not hear of a signal while it starts a program: it is heard at the next turn.
    client = await lab.start("-tt", "trap 'exit 130' INT; echo begun; while :; do sleep 0.2; done")
    async with asyncio.timeout(PATIENCE):
        assert client.stdout
        assert client.stdin
        assert await client.stdout.readline() == b"begun\r\n"
        client.stdin.write(b"\x03")
        assert await client.wait() == 130


async def test_who_hangs_up_ends_the_program_and_nothing_that_it_left_running(lab: Lab) -> None:
    client = await lab.start("(sleep 600; :) >/dev/null 2>&1 </dev/null & echo $! $$; cat")
    async with asyncio.timeout(PATIENCE):
        assert client.stdout
        left, shell = map(int, (await client.stdout.readline()).split())
        client.kill()
        await client.wait()
    await eventually(lambda: not runs(shell))
    assert runs(left)


async def test_without_a_key_or_a_right_nobody_comes_in(lab: Lab) -> None:
    stranger = lab.home / "stranger"
    await sync_to_async(lambda: lab.add_key(make_user("stranger"), stranger))()
    unknown = lab.home / "unknown"
    make_key(unknown)
    for how in ({"key": stranger}, {"key": unknown}, {"name": "other"}, {"name": "x" * 500}):
        code, _, err = await lab.ssh("true", **how)
        assert code == 255
        assert b"Permission denied" in err
    assert not await sync_to_async(AuditEntry.objects.filter(action="ssh-opened").exists)()


async def test_an_operator_comes_in_and_the_audit_log_says_who(lab: Lab) -> None:
    key = lab.home / "operator"
    made = await sync_to_async(lambda: lab.add_key(make_user("boss", Role.OPERATOR), key))()
    assert (await lab.ssh("true", key=key, name=lab.launch.id))[0] == 0

    def entries() -> list[tuple[str, str]]:
        found = AuditEntry.objects.filter(action__startswith="ssh-", actor="boss", subject=lab.launch.id)
        return [(each.action, each.detail.get("key", "")) for each in found.order_by("pk")]

    await eventually(lambda: sync_to_async(lambda: len(entries()) == 2)())
    assert await sync_to_async(entries)() == [("ssh-opened", made.fingerprint), ("ssh-closed", "")]


LOSSES: dict[str, Callable[[Lab], object]] = {
    "the key is removed": lambda lab: SshKey.objects.all().delete(),
    "the account is switched off": lambda lab: type(lab.owner).objects.update(is_active=False),
    "the container ends": lambda lab: Container.objects.update(finished_at=timezone.now()),
    "the container is another's": lambda lab: Container.objects.update(owner=make_user("other")),
}


@pytest.mark.parametrize("lost", LOSSES)
async def test_a_right_that_is_taken_away_closes_the_connection(
    lab: Lab, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.05)  # 5 s
    client = await lab.start("echo begun; cat")
    async with asyncio.timeout(PATIENCE):
        assert client.stdout
        assert await client.stdout.readline() == b"begun\n"
        await sync_to_async(LOSSES[lost])(lab)
        assert await client.wait() == 255


class Certified:
    """A key that nobody has added, and an authority that the door trusts."""

    def __init__(self, lab: Lab, settings: Any) -> None:
        self._lab = lab
        self.key, self.authority, self.foreign = (lab.home / name for name in ("unknown", "authority", "foreign"))
        for each in (self.key, self.authority, self.foreign):
            make_key(each)
        settings.GPUSHARE_SSH_CA = [" ".join(self.authority.with_suffix(".pub").read_text().split()[:2])]

    async def sign(self, *words: str, by: Path | None = None) -> None:
        """OpenSSH finds the certificate beside the key."""
        command = ["ssh-keygen", "-q", "-s", str(by or self.authority), "-I", "laptop", *words, f"{self.key}.pub"]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)

    async def ssh(self, *words: str) -> tuple[int, bytes, bytes]:
        return await self._lab.ssh(*words, key=self.key)


async def test_a_certificate_signs_in_whoever_it_names(lab: Lab, settings: Any) -> None:
    certified = Certified(lab, settings)
    await sync_to_async(make_user)("boss", Role.OPERATOR)
    for name in ("owner", "boss"):
        await certified.sign("-n", name, "-V", "+1h")
        assert await certified.ssh("echo in") == (0, b"in\n", b"")
        entry = await AuditEntry.objects.filter(action="ssh-opened").alatest("pk")
        assert (entry.actor, entry.detail["certificate_of"]) == (name, fingerprint(certified.authority))
    await certified.sign("-n", "owner", "-O", "force-command=echo forced", "-O", "source-address=127.0.0.0/8")
    assert await certified.ssh("echo in") == (0, b"forced\n", b"")


def fingerprint(key: Path) -> str:
    said = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], check=True, capture_output=True, text=True).stdout
    return said.split()[1]


async def test_a_certificate_of_another_kind_lets_nobody_in(lab: Lab, settings: Any) -> None:
    certified = Certified(lab, settings)
    await sync_to_async(make_user)("stranger")
    await sync_to_async(make_user)("*", Role.OPERATOR)
    gone = await sync_to_async(make_user)("gone", Role.OPERATOR)
    await type(gone).objects.filter(pk=gone.pk).aupdate(is_active=False)
    refused: list[tuple[str, ...]] = [
        ("-n", "owner", "-V", "20200101:20200102"), ("-n", "owner", "-V", "+1h:+2h"), ("-n", "owner", "-h"), (),
        ("-n", "stranger"), ("-n", "gone"), ("-n", "nobody"), ("-n", "own*"), ("-n", "Owner"), ("-n", "train.v1"),
        ("-n", "owner", "-O", "source-address=192.0.2.0/24"),
    ]  # fmt: skip
    for words in refused:
        await certified.sign(*words)
        code, _, err = await certified.ssh("true")
        assert (code, b"Permission denied" in err) == (255, True), words
    await certified.sign("-n", "owner", by=certified.foreign)
    assert (await certified.ssh("true"))[0] == 255
    await certified.sign("-n", "owner")
    settings.GPUSHARE_SSH_CA = []
    assert (await certified.ssh("true"))[0] == 255


async def test_a_right_that_is_taken_away_ends_a_certificate_s_connection(
    lab: Lab, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.05)  # 5 s
    certified = Certified(lab, settings)
    await certified.sign("-n", "owner")
    client = await lab.start("echo begun; cat", key=certified.key)
    async with asyncio.timeout(PATIENCE):
        assert client.stdout
        assert await client.stdout.readline() == b"begun\n"
        await type(lab.owner).objects.aupdate(is_active=False)
        assert await client.wait() == 255


async def test_the_door_at_an_ipv6_address(lab: Lab) -> None:
    await lab.close_door()
    await lab.open_door("::1")
    assert await lab.ssh("echo in") == (0, b"in\n", b"")
    entry = await AuditEntry.objects.aget(action="ssh-opened")
    assert entry.address == "::1"


async def test_a_laptop_that_sleeps_loses_its_connection_and_nothing_that_it_left_running(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ALIVE", 0.1)  # 30 s
    await lab.close_door()
    await lab.open_door("127.0.0.1")
    client = await lab.start("(sleep 600; :) >/dev/null 2>&1 </dev/null & echo $! $$; cat")
    async with asyncio.timeout(PATIENCE):
        assert client.stdout
        left, shell = map(int, (await client.stdout.readline()).split())
        await stopped(client.pid)
        await eventually(lambda: not runs(shell))
        client.send_signal(signal.SIGCONT)
        assert await client.wait() == 255
    assert runs(left)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"x" * 100_000, b"SSH-2.0-x\r\n" + b"\xff" * 64]
)
async def test_what_is_no_ssh_is_hung_up_on(lab: Lab, said: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
    writer.write(said)
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
    writer.close()
    assert (await lab.ssh("true"))[0] == 0


async def test_who_tries_key_after_key_is_hung_up_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEYS", 1)
    keys = [lab.home / f"guess-{n}" for n in range(4)]
    for each in keys:
        make_key(each)
    more = [word for each in keys[1:] for word in ("-i", str(each))]
    code, _, err = await lab.ssh(*more, "true", key=keys[0])
    assert code == 255
    assert b"Permission denied" not in err  # there was no more to say


async def test_strangers_who_say_nothing_give_way_to_who_comes(lab: Lab) -> None:
    strangers = [await asyncio.open_connection("127.0.0.1", lab.port) for _ in range(80)]
    assert (await lab.ssh("true"))[0] == 0
    for _, writer in strangers:
        writer.close()

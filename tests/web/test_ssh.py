"""ssh into containers, by OpenSSH's own client: the door in this process, and local processes as containers."""

import asyncio
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.utils import timezone

from scheduler.containers.consoles import Consoles
from scheduler.engines.base import Engine, Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.process.taken import IMAGE
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import (
    a_launch,
    docker_api,
    docker_engine,
    dockerd,
    empty,
    empty_shim,
    leaks_sockets,
    open_engine,
    started,
)
from tests.support.eventually import PATIENCE, eventually, stopped
from tests.support.machine import make_container
from tests.support.people import make_user
from web.door import programs, server
from web.door.server import open_door
from web.models import AuditEntry, Container, SshKey
from web.people import ssh_keys, visitor
from web.people.roles import Role
from web.spec.inside.reserved import SFTP

__all__ = ["a_launch", "docker_api", "docker_engine", "dockerd", "empty_shim", "open_engine"]

pytestmark = [leaks_sockets, pytest.mark.django_db(transaction=True)]


HERE = {"swap": "", "gave_way": "", "paused": False, "is_out": False}  # where its memory is


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "laptop", "-f", path], check=True)


class Lab:
    """A container of `owner`, whose key is at `key`, and the door to it at `port`."""

    def __init__(self, engine: Engine, home: Path, a_launch: Callable[..., Launch]) -> None:
        self._engine, self.home, self._a_launch = engine, home, a_launch
        self._live: dict[str, Any] = {}
        self.consoles = Consoles(engine, cast(Any, SimpleNamespace(live_containers=self._live)), home)
        self.key = home / "key"
        self.work = home / "work"

    async def open(self) -> None:
        self.work.mkdir()
        await self.consoles.open()
        await sync_to_async(self._people)()
        self.launch = self._a_launch("/bin/sleep", "600", working_dir=str(self.work))
        shutil.copy(settings.GPUSHARE_BUILD / SFTP, self.launch.socket_dir)
        status = await self._engine.launch(self.launch)
        await self._engine.statuses()
        self._live[self.launch.id] = SimpleNamespace(finished=False, engine_id=status.engine_id, **HERE)
        await sync_to_async(make_container)(self.owner, "train.v1", pk=UUID(self.launch.id))
        await self.open_door("127.0.0.1")

    async def open_door(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        self.address, self.port = address, listener.getsockname()[1]
        self.door = await open_door(listener)
        (self.home / "known").write_text(f"[{address}]:{self.port} {ssh_keys.host_key_line()}\n")

    async def close_door(self) -> None:
        self.door.close()
        await self.door.wait_closed()

    def _people(self) -> None:
        self.owner = make_user("owner")
        self.add_key(self.owner, self.key)

    def add_key(self, user: Any, path: Path) -> SshKey:
        make_key(path)
        return ssh_keys.add(user, {"key": path.with_suffix(".pub").read_text()})

    def options(self, key: Path | None = None) -> list[str]:
        said = {
            "IdentityFile": key or self.key, "IdentitiesOnly": "yes", "UserKnownHostsFile": self.home / "known",
            "StrictHostKeyChecking": "yes", "BatchMode": "yes", "LogLevel": "ERROR", "ConnectTimeout": 20,
        }  # fmt: skip
        return ["-F", "none", *(f"-o{name}={value}" for name, value in said.items())]

    async def start(self, *words: str, name: str = "train.v1", key: Path | None = None) -> asyncio.subprocess.Process:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        to = f"{name}@{self.address}"
        return await asyncio.create_subprocess_exec(
            "ssh", *self.options(key), "-p", str(self.port), to, *words, **cast(Any, pipes)
        )

    async def ssh(self, *words: str, typed: bytes = b"", **how: Any) -> tuple[int, bytes, bytes]:
        client = await self.start(*words, **how)
        async with asyncio.timeout(PATIENCE):
            out, err = await client.communicate(typed)
        return client.returncode or 0, out, err

    async def close(self) -> None:
        await self.close_door()
        await self.consoles.close()


@pytest.fixture
async def lab(tmp_path: Path, settings: Any, empty_shim: Path, a_launch: Callable[..., Launch]) -> AsyncIterator[Lab]:
    settings.GPUSHARE_HOME = tmp_path
    local = ProcessEngine(tmp_path / "processes", RuntimeEnvironment(empty_shim))
    launch = partial(a_launch, image=IMAGE)
    async with started(local) as engine, opened(Lab(engine, tmp_path, launch)) as made:
        yield made
        await made.close()
        await empty(engine)


@pytest.fixture
async def in_docker(
    docker_engine: DockerEngine, tmp_path: Path, settings: Any, a_launch: Callable[..., Launch]
) -> AsyncIterator[Lab]:
    settings.GPUSHARE_HOME = tmp_path
    async with opened(Lab(docker_engine, tmp_path, a_launch)) as made:
        yield made
        await made.close()


@asynccontextmanager
async def opened(made: Lab) -> AsyncIterator[Lab]:
    await made.open()
    yield made
    await sync_to_async(connections.close_all)()


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


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("words", [("-N", "-L{}:127.0.0.1:{}"), ("-N", "-L{}:train.v1:{}")])
async def test_a_port_of_the_container_is_forwarded(lab: Lab, words: tuple[str, str]) -> None:
    inner, outer = a_port(), a_port()
    serving = await lab.start(f"exec /bin/busybox httpd -f -p 127.0.0.1:{inner} -h /")
    forwarding = await lab.start(words[0], words[1].format(outer, inner))
    answer = await eventually(lambda: answer_of(outer))  # nothing until it listens
    assert answer.startswith(b"HTTP/1.")
    for each in (serving, forwarding):
        each.terminate()
        await each.wait()


@pytest.mark.parametrize("to", ["192.0.2.1:80", "example.org:80", "127.0.0.1:{of_the_host}"])
async def test_nothing_else_is_forwarded(lab: Lab, to: str) -> None:
    outer = a_port()
    with socket.create_server(("127.0.0.1", 0)) as of_the_host:
        to = to.format(of_the_host=of_the_host.getsockname()[1])
        forwarding = await lab.start("-N", f"-L{outer}:{to}")
        assert await answer_of(outer) == b""
        of_the_host.settimeout(0)
        with pytest.raises(BlockingIOError):
            of_the_host.accept()
    forwarding.terminate()
    await forwarding.wait()


CAPITALS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    server.listen()
    print("listening", flush=True)
    while True:
        with server.accept()[0] as client:
            while data := client.recv(1 << 16):
                client.sendall(data.upper())
            client.sendall(b"over")
"""


async def test_a_unix_socket_of_the_container_is_forwarded(lab: Lab) -> None:
    """By its path in the container; also relative to where its programs begin."""
    (lab.work / "serve.py").write_text(CAPITALS)
    serving = await lab.start("exec python3 serve.py in-capitals")
    outer = a_port()
    forwarding = await lab.start("-N", f"-L{outer}:{lab.work}/in-capitals")
    async with asyncio.timeout(PATIENCE):
        assert serving.stdout
        assert await serving.stdout.readline() == b"listening\n"
        for _ in range(2):  # one after the other
            reader, writer = await eventually(lambda: connected(outer))
            typed = b"typed" * 100_000
            writer.write(typed)
            assert await reader.readexactly(len(typed)) == typed.upper()
            writer.write_eof()
            assert await reader.read() == b"over"
            writer.close()
    entry = await AuditEntry.objects.aget(action="socket-opened")
    assert entry.detail["path"] == f"{lab.work}/in-capitals"
    for each in (serving, forwarding):
        each.terminate()
        await each.wait()


@pytest.mark.parametrize("path", ["/nothing/there", "/etc/passwd"])
async def test_a_path_where_no_socket_listens_is_refused(lab: Lab, path: str) -> None:
    outer = a_port()
    forwarding = await lab.start("-N", f"-L{outer}:{path}")
    assert await answer_of(outer) == b""
    forwarding.terminate()
    assert forwarding.stderr
    await forwarding.wait()


def a_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: int = server.getsockname()[1]
        return found


async def answer_of(port: int) -> bytes:
    """To an HTTP request, once something listens and lets it through; nothing where it is refused."""
    reader, writer = await eventually(lambda: connected(port))
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        return await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return None


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


async def test_vs_code_finds_its_server_again_by_each_new_connection(lab: Lab) -> None:
    """Its shape: a shell without a terminal, and a SOCKS proxy by which its server in the container is reached."""
    inner, outer, pids = a_port(), a_port(), set()
    serve = f"/bin/busybox httpd -f -p 127.0.0.1:{inner} -h /"
    script = f"test -e server || ({serve} >/dev/null 2>&1 </dev/null & echo $! >server); cat server\n"
    for _ in range(3):
        client = await lab.start("-T", "-D", f"127.0.0.1:{outer}", "sh")
        async with asyncio.timeout(PATIENCE):
            assert client.stdin
            assert client.stdout
            client.stdin.write(script.encode())
            pids.add(await client.stdout.readline())
            assert await eventually(lambda: by_socks(outer, inner))
            client.kill()  # as a line that breaks
            await client.wait()
    assert len(pids) == 1


async def by_socks(proxy: int, port: int) -> bool:
    """Whether HTTP is answered there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
    try:
        writer.write(b"\5\1\0" + b"\5\1\0\1\x7f\0\0\1" + port.to_bytes(2))
        await reader.readexactly(12)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        return (await reader.read()).startswith(b"HTTP/1.")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False  # it does not listen yet
    finally:
        writer.close()


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


async def copied(lab: Lab, *words: str, typed: bytes = b"") -> bytes:
    """What a program of OpenSSH's has printed that copies between here and the container."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    client = await asyncio.create_subprocess_exec(*words, cwd=lab.home, **cast(Any, pipes))
    async with asyncio.timeout(PATIENCE):
        out, _ = await client.communicate(typed)
    assert client.returncode == 0, out
    return out


WAYS = {
    "scp": ("scp", "-r"),
    "scp of old": ("scp", "-O", "-r"),
    "rsync": ("rsync", "-a", "-e"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_folders_are_copied_there_and_back(lab: Lab, way: str) -> None:
    content = bytes(range(256)) * 8192
    (lab.home / "here/within").mkdir(parents=True)
    (lab.home / "here/within/a file").write_bytes(content)
    (lab.home / "here/within/a file").chmod(0o751)
    (lab.home / "here/empty").touch()
    program, *flags = WAYS[way]
    to = (
        ["ssh " + " ".join([*lab.options(), "-p", str(lab.port)])]
        if way == "rsync"
        else [*lab.options(), "-P", str(lab.port)]
    )
    await copied(lab, program, *flags, *to, "here", "train.v1@127.0.0.1:there")
    assert (lab.work / "there" / ("here" if way == "rsync" else "") / "within/a file").read_bytes() == content
    await copied(lab, program, *flags, *to, "train.v1@127.0.0.1:there", "back")
    found = next(lab.home.glob("back/**/a file"))
    assert (found.read_bytes(), found.stat().st_mode & 0o777) == (content, 0o751)


async def test_sftp_does_what_its_clients_ask_and_says_what_cannot_be(lab: Lab) -> None:
    (lab.work / "one").write_text("1")
    said = b"""pwd
mkdir folder
rename one folder/two
-rename folder/two folder
symlink two folder/link
ls -l folder
chmod 600 folder/two
ln folder/two three
-get nothing
-rm folder
rm three
"""
    out = (await copied(lab, "sftp", *lab.options(), "-b", "-", "-P", str(lab.port), "train.v1@127.0.0.1",
                        typed=said)).decode()  # fmt: skip
    assert f"Remote working directory: {lab.work}" in out
    assert "nothing: No such file" in out or 'nothing" not found' in out
    assert out.count(": Failure") == 2  # a rename over what is there, and a folder that is no file
    assert (lab.work / "folder/two").stat().st_mode & 0o777 == 0o600
    assert (lab.work / "folder/link").readlink() == Path("two")
    assert not (lab.work / "three").exists()


def message(kind: int, *parts: bytes) -> bytes:
    body = bytes([kind]) + b"".join(parts)
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "said",
    [b"\xff\xff\xff\xff", b"\0\0\0\0", message(3),
     message(3, b"\0\0\0\1", b"\xff\xff\xff\xff"), message(5, b"\0\0\0\1"),
     message(4, b"\0\0\0\1", b"\0\0\0\4", b"\xff\xff\xff\xff"), message(17, b"\0\0\0\1", b"\0\0\x20\0", b"x" * 8192),
     message(9, b"\0\0\0\1", b"\0\0\0\1x", b"\x80\0\0\0", b"\xff\xff\xff\xff")],
)  # fmt: skip
def test_sftp_outlives_messages_without_sense(said: bytes, tmp_path: Path) -> None:
    """It says so, or ends by itself; it never dies by a signal, and what comes after a whole message is served."""
    program = settings.GPUSHARE_BUILD / SFTP
    asked = message(1, b"\0\0\0\3") + said + message(16, b"\0\0\0\2", b"\0\0\0\1.")
    done = subprocess.run([program], input=asked, capture_output=True, cwd=tmp_path, check=False, timeout=PATIENCE)
    assert done.returncode in (0, 1)
    whole = 5 <= int.from_bytes(said[:4], "big") < 1 << 18
    assert (str(tmp_path).encode() in done.stdout) == (whole or said == message(3))


@pytest.mark.docker
async def test_a_docker_container_is_entered_in_the_same_ways(in_docker: Lab) -> None:
    typed = bytes(range(256)) * 8192
    assert await in_docker.ssh("cat; echo wrong >&2; exit 7", typed=typed) == (7, typed, b"wrong\n")
    (in_docker.home / "here").write_bytes(typed)
    to = [*in_docker.options(), "-P", str(in_docker.port)]
    await copied(in_docker, "scp", *to, "here", "train.v1@127.0.0.1:/tmp/there")
    await copied(in_docker, "scp", *to, "train.v1@127.0.0.1:/tmp/there", "back")
    assert (in_docker.home / "back").read_bytes() == typed
    # Docker sets the size once the program has begun; before, `stty` has nothing to say.
    sized = 'until [ -n "$(stty size 2>/dev/null)" ]; do true; done; stty size; exit 3'
    code, out, err = await in_docker.ssh("-tt", sized)
    assert (code, out, err) == (3, b"24 80\r\n", b"")


@pytest.mark.docker
async def test_a_link_in_a_docker_container_leads_to_no_socket_of_the_host(in_docker: Lab) -> None:
    with socket.socket(socket.AF_UNIX) as of_the_host:
        of_the_host.bind(str(in_docker.home / "host.sock"))
        of_the_host.listen()
        assert (await in_docker.ssh(f"/bin/busybox ln -s {in_docker.home}/host.sock /tmp/link"))[0] == 0
        for path in (f"{in_docker.home}/host.sock", "/tmp/link", "/proc/1/root/../../host.sock"):
            outer = a_port()
            forwarding = await in_docker.start("-N", f"-L{outer}:{path}")
            assert await answer_of(outer) == b""
            forwarding.terminate()
            await forwarding.wait()
        of_the_host.settimeout(0)
        with pytest.raises(BlockingIOError):
            of_the_host.accept()

"""What ssh passes into containers and out of them, by OpenSSH's own clients: ports, sockets and files."""

import asyncio
import socket
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from django.conf import settings

from tests.engines.conftest import leaks_sockets
from tests.support.eventually import PATIENCE, eventually
from tests.support.ports import free_port
from tests.support.ssh_lab import (
    Lab,
    a_launch,
    answer_of,
    connected,
    docker_api,
    docker_engine,
    dockerd,
    empty_shim,
    in_docker,
    lab,
    open_engine,
    over,
)
from web.models import AuditEntry
from web.spec.inside.reserved import SFTP

__all__ = ["a_launch", "docker_api", "docker_engine", "dockerd", "empty_shim", "in_docker", "lab", "open_engine"]

pytestmark = [leaks_sockets, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("words", [("-N", "-L{}:127.0.0.1:{}"), ("-N", "-L{}:train.v1:{}")])
async def test_a_port_of_the_container_is_forwarded(lab: Lab, words: tuple[str, str]) -> None:
    inner, outer = free_port(), free_port()
    serving = await lab.start(f"exec /bin/busybox httpd -f -p 127.0.0.1:{inner} -h /")
    forwarding = await lab.start(words[0], words[1].format(outer, inner))
    answer = await eventually(lambda: answer_of(outer))  # nothing until it listens
    assert answer.startswith(b"HTTP/1.")
    for each in (serving, forwarding):
        await over(each)


@pytest.mark.parametrize("to", ["192.0.2.1:80", "example.org:80", "127.0.0.1:{of_the_host}"])
async def test_nothing_else_is_forwarded(lab: Lab, to: str) -> None:
    outer = free_port()
    with socket.create_server(("127.0.0.1", 0)) as of_the_host:
        to = to.format(of_the_host=of_the_host.getsockname()[1])
        forwarding = await lab.start("-N", f"-L{outer}:{to}")
        assert await answer_of(outer) == b""
        of_the_host.settimeout(0)
        with pytest.raises(BlockingIOError):
            of_the_host.accept()
    await over(forwarding)


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
    outer = free_port()
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
        await over(each)


@pytest.mark.parametrize("path", ["/nothing/there", "/etc/passwd"])
async def test_a_path_where_no_socket_listens_is_refused(lab: Lab, path: str) -> None:
    outer = free_port()
    forwarding = await lab.start("-N", f"-L{outer}:{path}")
    assert await answer_of(outer) == b""
    await over(forwarding)


async def test_vs_code_finds_its_server_again_by_each_new_connection(lab: Lab) -> None:
    """Its shape: a shell without a terminal, and a SOCKS proxy by which its server in the container is reached."""
    inner, outer, pids = free_port(), free_port(), set()
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
            outer = free_port()
            forwarding = await in_docker.start("-N", f"-L{outer}:{path}")
            assert await answer_of(outer) == b""
            await over(forwarding)
        of_the_host.settimeout(0)
        with pytest.raises(BlockingIOError):
            of_the_host.accept()

"""A Docker engine of the tests' own: a real dockerd on its own socket and data folder, ended by its pid.

Use the fixtures `dockerd` (one for the session, with the image IMAGE) and `docker_api`.
"""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import pytest

from tests.support.card import BUILD
from tests.support.eventually import PATIENCE, until
from tests.support.running import ended

IMAGE = "gpushare/test:latest"
SHIFTED = 300_000
FLAGS = "TEST_DOCKERD_FLAGS"  # more words for each dockerd, from the environment: `make docker-test`
PLUGINS = "/run/docker/plugins"
LINKS = (
    "sh", "cat", "env", "sleep", "ls", "id", "dd", "yes", "head", "grep", "seq", "true", "kill", "wc", "tr", "stty",
    "printf", "setsid",
)  # fmt: skip


class Dockerd:
    """`address` is its DOCKER_HOST. After `stop` or `kill`, `start` brings it back with what it holds.

    `plugins`: it looks for plugins in a folder of its own: every engine asks every socket in the usual one, and waits a
    quarter of a minute for each that nobody listens at any more.
    `remapped`: who is root in a container is the user SHIFTED on the host (`userns-remap`), and so on upwards.
    """

    def __init__(self, folder: Path, bridge: str = "none", *, remapped: bool = False, plugins: bool = False) -> None:
        self.folder, self._bridge, self._remapped = folder, bridge, remapped
        self.plugins = folder / "plugins" if plugins else None
        self.address = f"unix://{folder}/docker.sock"

    def _before(self) -> list[str]:
        """The command that it is started by, in whatever surroundings it is to have."""
        return self._with_users()

    def _flags(self) -> list[str]:
        return [*(["--userns-remap=daemon"] if self._remapped else []), *os.environ.get(FLAGS, "").split()]

    def start(self) -> None:
        # After a sudden death it may give up on the containerd that lives on; a supervisor would start it again too.
        assert any(self._start() for _ in range(3)), f"dockerd ends: {(self.folder / 'log').read_text()[-2000:]}"

    def _start(self) -> bool:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._before(), "dockerd",
                 "--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec",
                 "-H", self.address, "--pidfile", f"{self.folder}/pid",
                 "--iptables=false", f"--bridge={self._bridge}", "--ip-forward=false", "--shutdown-timeout=2",
                 *self._flags()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until(lambda: self._answers() or self._process.poll() is not None, every=0.05)
        return self._process.poll() is None

    def _with_users(self) -> list[str]:
        """What it reads in /etc/subuid and /etc/subgid is its own: the host's files stay as they are."""
        if self.plugins is not None:
            self.plugins.mkdir(exist_ok=True)
            return with_mounts({PLUGINS: self.plugins})
        if not self._remapped:
            return []
        self.folder.chmod(0o711)  # its containers' users have to get to their files
        users = self.folder / "subid"
        users.write_text(f"daemon:{SHIFTED}:65536\n")
        return with_mounts(dict.fromkeys(("/etc/subuid", "/etc/subgid"), users))

    def _answers(self) -> bool:
        # Not by the SDK: where nothing listens, it leaves its socket to the garbage collector, with a warning.
        with socket.socket(socket.AF_UNIX) as asker:
            try:
                asker.connect(str(self.folder / "docker.sock"))
                asker.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 OK" in asker.recv(100)
            except OSError:
                return False

    def stop(self) -> None:
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def kill(self) -> None:
        """Sudden death. Its containerd dies with it, a moment later; a dockerd started before that would get lost."""
        containerd = (self.folder / "exec/containerd/containerd.pid").read_text().strip()
        self._process.kill()
        self._process.wait(PATIENCE)
        until(lambda: ended(int(containerd)))
        (self.folder / "pid").unlink(missing_ok=True)

    def restore(self) -> None:
        """Brings it back if a test left it stopped or frozen."""
        self.thaw()
        if self._process.poll() is not None:
            self.start()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def with_mounts(mounts: Mapping[str, Path], *unshared: str, then: str = "exec") -> list[str]:
    """What a command is to be started by that alone has these mounts (place → what is there). `then` starts it."""
    made = "".join(f"mount --bind {what} {place} && " for place, what in mounts.items())
    script = f'mkdir -p {PLUGINS} && {made}{then} "$@"'
    return ["unshare", "--mount", "--propagation=slave", *unshared, "sh", "-c", script, "dockerd"]


class NoBridge(OSError):
    """This machine lets nobody make one."""


@contextmanager
def private(network: bool = False, *, remapped: bool = False, plugins: bool = False) -> Iterator[Dockerd]:
    """A running Docker engine, taken away at the end. `network`: its containers have Docker's usual one, a bridge.

    Raises NoBridge.
    """
    bridge = f"gps{os.getpid()}" if network else "none"
    make = f"ip link add {bridge} type bridge && ip address add 172.31.254.1/24 dev {bridge} && ip link set {bridge} up"
    # Not below pytest's own folder: the path of a UNIX socket is 107 bytes at most.
    engine = Dockerd(Path(tempfile.mkdtemp(prefix="dockerd-")), bridge, remapped=remapped, plugins=plugins)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, engine.folder, ignore_errors=True)
        if network:
            stack.callback(subprocess.run, ["ip", "link", "delete", bridge], capture_output=True, check=False)
            if subprocess.run(["sh", "-c", make], capture_output=True, check=False).returncode:
                raise NoBridge("a bridge cannot be made here")
        stack.callback(engine.stop)
        engine.start()
        yield engine


def have_dockerd() -> str:
    """Why no dockerd can be started here; empty if one can."""
    if shutil.which("dockerd") is None:
        return "no dockerd is installed"
    return "" if os.geteuid() == 0 else "dockerd needs root"


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    if why_not := have_dockerd():
        pytest.skip(why_not)
    with private() as engine:
        client = docker.APIClient(engine.address, version="auto")
        try:
            build_image(client, IMAGE)
            yield engine
            for container in client.containers(quiet=True):  # those that have ended go with the engine's folder
                client.kill(container["Id"])
        finally:
            client.close()


@pytest.fixture
def docker_api(dockerd: Dockerd) -> Iterator[docker.APIClient]:
    """A client for looking at, and meddling with, what the engine under test does."""
    client = docker.APIClient(dockerd.address, version="auto")
    yield client
    client.close()


GAVE_UP = "could not kill"  # Docker waits ten seconds for the end, and a kernel with much to do may take longer


def clear(client: docker.APIClient) -> None:
    """Removes all containers, those that run too."""

    def gone() -> bool:
        for each in client.containers(all=True, quiet=True):
            try:
                client.remove_container(each["Id"], force=True, v=True)
            except docker.errors.APIError as error:
                if GAVE_UP not in str(error).lower():
                    raise
        return not client.containers(all=True, quiet=True)

    until(gone)


def build_image(
    client: docker.APIClient,
    name: str,
    programs: Sequence[Path] = (),
    *,
    mounted: Sequence[Path] = (),
    labels: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    also: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
    files: Mapping[str, Path] | None = None,
) -> None:
    """An image of busybox and `programs` (in /bin), made without a registry.

    It has the shared libraries that the programs need, and those that libraries `mounted` later need. `also` are more
    lines as in a Dockerfile, `links` more symbolic links: place → where it leads, `files` more files: place → content.
    """
    repository, _, tag = name.partition(":")
    changes = [f'LABEL "{key}"="{value}"' for key, value in (labels or {}).items()]
    changes += [f'ENV "{key}"="{value}"' for key, value in (environment or {}).items()]
    client.import_image_from_data(
        _root(programs, mounted, {**(links or {}), **(files or {})}),
        repository=repository,
        tag=tag or "latest",
        changes=[*changes, *also],
    )


def build_workload(address: str, name: str, programs: Sequence[Path] = (), **more: Any) -> None:
    """An image with the workload, in the engine at this address; shim and simulated driver are mounted later."""
    libraries = [BUILD / "libgpushare.so", BUILD / "sim/libcuda.so.1"]
    client = docker.APIClient(address, version="auto")
    try:
        build_image(client, name, [BUILD / "workload", *programs], mounted=libraries, **more)
    finally:
        client.close()


def set_in_image(client: docker.APIClient, name: str, **fields: str) -> None:
    """Sets fields of its configuration, also those that an import cannot set, or to what a Dockerfile may not say."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(client.get_image(name)))) as saved:
        (manifest,) = json.loads(_content(saved, "manifest.json"))
        config = json.loads(_content(saved, manifest["Config"]))
        parts = {layer: _content(saved, layer) for layer in manifest["Layers"]}
    config["config"] |= fields
    parts["config"] = json.dumps(config).encode()
    described = [{"Config": "config", "RepoTags": [name], "Layers": manifest["Layers"]}]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for place, content in (parts | {"manifest.json": json.dumps(described).encode()}).items():
            entry = _entry(place, tarfile.REGTYPE, 0o644)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    assert all("error" not in line for line in client.load_image(buffer.getvalue()))  # type: ignore[no-untyped-call]


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None, f"{name} is a file"
    return file.read()


def _root(programs: Sequence[Path], mounted: Sequence[Path], more: Mapping[str, Path | str]) -> bytes:
    busybox = shutil.which("busybox")
    assert busybox, "busybox is needed (Debian: busybox-static)"
    entries: dict[str, Path | str] = {"bin/busybox": Path(busybox), **{f"bin/{name}": "busybox" for name in LINKS}}
    entries |= more
    entries |= {f"bin/{program.name}": program for program in programs}
    for library in sorted({each for program in (*programs, *mounted) for each in needed_libraries(program)}):
        # The loader is looked for in both places: by the kernel, and by name where a program loads anew.
        for place in (library, str(Path(library).resolve())):
            entries[place.lstrip("/")] = Path(library).resolve()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        # What stands in a folder that was not said, a rootless Docker lets nobody enter.
        for folder in sorted({above for name in entries for above in PurePosixPath(name).parents if above.name}):
            tar.addfile(_entry(str(folder), tarfile.DIRTYPE, 0o755))
        tar.addfile(_entry("tmp", tarfile.DIRTYPE, 0o1777))
        for name, what in entries.items():
            if isinstance(what, Path):
                tar.add(what, name)
            else:
                tar.addfile(_entry(name, tarfile.SYMTYPE, 0o777, what))
    return buffer.getvalue()


def _entry(name: str, kind: bytes, mode: int, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname = kind, mode, target
    return entry


def needed_libraries(program: Path) -> list[str]:
    """The shared libraries, and the loader, that a program is started with: the absolute paths in `ldd`'s answer."""
    answer = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    words = answer.stdout.split() if answer.returncode == 0 else []
    return [word for word in words if word.startswith("/")]

"""What goes wrong in Docker is reported in a sentence that says what to do, and leaves nothing behind."""

import asyncio
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import docker
import docker.errors
import pytest
import requests.exceptions

from scheduler.engines.base import Condition, EngineAway, EngineError, Launch
from scheduler.engines.docker import versions
from scheduler.engines.docker.client import Client
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.errors import explain
from scheduler.engines.docker.options import container_name
from scheduler.engines.docker.settings import limits_of
from tests.engines.conftest import Opener
from tests.support.disk import fill, small_disk
from tests.support.dockerd import IMAGE, Dockerd, NoBridge, build_image, have_dockerd, private
from tests.support.eventually import eventually
from tests.support.ports import free_port

Launcher = Callable[..., Launch]


def said_by_docker(sentence: str, status: int = 500) -> docker.errors.APIError:
    return docker.errors.APIError(sentence, response=Mock(status_code=status), explanation=sentence)


@pytest.mark.parametrize(
    ("sentence", "status", "code", "ours", "field"),
    [
        ("pull access denied for x, repository does not exist or may require 'docker login'", 404, "unknown_image",
         404, "image"),
        ("manifest for x:9 not found: manifest unknown: manifest unknown", 404, "unknown_image", 404, "image"),
        ('Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host', 500,
         "registry_away", 503, "image"),
        ('Conflict. The container name "/x" is already in use by container "abc".', 409, "name_taken", 409, "name"),
        ("driver failed programming external connectivity on endpoint x: Bind for 0.0.0.0:80 failed: port is already "
         "allocated", 500, "port_taken", 409, "ports"),
        ("driver failed programming external connectivity: Error starting userland proxy: listen tcp4 0.0.0.0:80: "
         "bind: address already in use", 500, "port_taken", 409, "ports"),
        ("mkdir /var/lib/docker/overlay2/x: no space left on device", 500, "disk_full", 503, ""),
        ('failed to create task: exec: "nope": executable file not found in $PATH: unknown', 400, "cannot_start", 400,
         "command"),
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', 500, "gpu_unreachable", 503, ""),
        # containerd's image store
        ('failed to resolve reference "docker.io/library/x:9": docker.io/library/x:9: not found', 404, "unknown_image",
         404, "image"),
        ("pull access denied, repository does not exist or may require authorization: authorization failed: no basic "
         "auth credentials", 404, "registry_refused", 409, "image"),
        ("pull access denied, repository does not exist or may require authorization: server message: "
         "insufficient_scope: authorization failed", 404, "unknown_image", 404, "image"),
        ('failed to do request: Head "https://127.0.0.1:1/v2/x/manifests/9": dial tcp 127.0.0.1:1: connect: connection '
         "refused", 500, "registry_away", 503, "image"),
        # runc from 1.3 on
        ("failed to create task for container: failed to create shim task: OCI runtime create failed: runc create "
         'failed: unable to start container process: error during container init: error mounting "/h/libgpushare.so" '
         'to rootfs at "/run/gpushare-lib/libgpushare.so": create mountpoint for /run/gpushare-lib/libgpushare.so '
         "mount: lookup run/gpushare-lib: invalid cross-device link: unknown", 500, "volume_in_the_way", 400, "image"),
        # an engine without root whose own control group is not the first
        ("cannot pause container 7207: OCI runtime pause failed: freezer not supported: openat2 "
         "/sys/fs/cgroup/user.slice/7207/cgroup.freeze: no such file or directory: unknown", 500, "not_supported",
         409, ""),
        ('OCI runtime create failed: runc create failed: error mounting "/d" to rootfs at "/x": lookup /x: too many '
         "levels of symbolic links: unknown", 500, "engine_error", 503, ""),
        # why a program does not run
        ('OCI runtime create failed: exec: "/opt/x": permission denied: unknown', 400, "cannot_execute", 400,
         "command"),
        ('OCI runtime create failed: exec: "/opt": is a directory: unknown', 400, "cannot_execute", 400, "command"),
        ("OCI runtime create failed: exec /opt/x: exec format error: unknown", 400, "cannot_execute", 400, "command"),
        ('OCI runtime create failed: exec: "/x": stat /x: no such file or directory', 400, "cannot_start", 400,
         "command"),
        ('OCI runtime create failed: exec: "/sbin/docker-init": stat /sbin/docker-init: no such file or directory', 400,
         "volume_in_the_way", 400, "volumes"),
        ("something that nobody has seen before", 500, "engine_error", 503, ""),
        ("something that nobody has seen before", 409, "engine_error", 409, ""),
    ],
)  # fmt: skip
def test_each_sentence_of_docker_has_an_answer(sentence: str, status: int, code: str, ours: int, field: str) -> None:
    error = explain(said_by_docker(sentence, status), address="unix:///d", image="x:9", command="nope", ports="80:80")
    assert (error.code, error.status, error.field) == (code, ours, field)
    assert str(error).endswith((".", sentence))
    assert "{" not in str(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (requests.exceptions.ReadTimeout("x"), "Docker at unix:///d/docker.sock is too slow"),
        (requests.exceptions.ConnectionError("x"), "Docker does not answer at unix:///d/docker.sock"),
        (OSError(5, "x"), "Docker does not answer at unix:///d/docker.sock"),
    ],
)
def test_no_answer_is_an_engine_away_with_its_address(error: Exception, words: str) -> None:
    found = explain(error, address="unix:///d/docker.sock")
    assert isinstance(found, EngineAway)
    assert words in str(found)


def test_missing_controllers_are_said_and_gone_without(caplog: pytest.LogCaptureFixture) -> None:
    info = {"MemTotal": 1 << 30, "NCPU": 4, "PidsLimit": True, "SecurityOptions": ["name=seccomp,profile=default"]}
    limits = limits_of(Mock(memory=None, cpus=None, pids=100), info)
    assert (limits.memory, limits.cpus, limits.pids, limits.swap) == (None, None, 100, False)
    assert "no control group for host memory, CPU" in caplog.text


@pytest.mark.parametrize(
    ("component", "version", "says"),
    [
        ("runc", "1.1.11", ["CVE-2024-21626", "CVE-2025-31133", "1.2.8 or newer"]),
        ("runc", "1.1.5+ds1", ["CVE-2024-21626", "A distribution may have mended"]),
        ("runc", "1.2.7", ["CVE-2025-31133"]),
        ("runc", "1.3.2", ["CVE-2025-31133", "1.3.3 or newer"]),
        ("runc", "1.2.8", []),
        ("runc", "v1.3.3", []),
        ("Engine", "20.10.17", ["CVE-2022-36109", "20.10.18 or newer"]),
        ("Engine", "28.2.2", []),
        ("Engine", "library-import", []),
        ("containerd", "1.0", []),
        (
            "NVIDIA Container Toolkit",
            "1.17.7",
            ["CVE-2025-23266", "The NVIDIA Container Toolkit is", "1.17.8 or newer"],
        ),
        ("NVIDIA Container Toolkit", "1.17.8", []),
    ],
)
def test_releases_with_a_way_out_are_named_with_those_without(component: str, version: str, says: list[str]) -> None:
    warnings = versions.outdated([{"Name": component, "Version": version}])
    assert len(warnings) == bool(says)
    assert all(word in " ".join(warnings) for word in says)


@pytest.mark.docker
async def test_the_start_tells_of_an_engine_that_is_too_old(
    open_engine: Opener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "HOLES", (versions.Hole("Engine", (999, 1), "CVE-0", "a test of this"),))
    async with open_engine() as engine:
        (warnings,) = engine.outdated
    assert "it should be 999.1 or newer (CVE-0: a test of this)" in warnings
    assert warnings in caplog.text


@pytest.mark.docker
class TestRealDocker:
    @pytest.fixture(autouse=True)
    async def nothing_is_left(self, docker_engine: DockerEngine, docker_api: docker.APIClient) -> None:
        self.engine, self.api = docker_engine, docker_api

    async def refused(self, launch: Launch) -> EngineError:
        with pytest.raises(EngineError) as caught:
            await self.engine.launch(launch)
        ours = {"label": f"com.gpushare.container={launch.id}"}
        assert self.api.containers(all=True, filters=ours) == []
        return caught.value

    async def test_program_that_is_not_there(self, a_launch: Launcher) -> None:
        error = await self.refused(a_launch("/no/such/program"))
        assert (error.code, error.field) == ("cannot_start", "command")
        assert "'/no/such/program'" in str(error)

    async def test_no_command_at_all(self, a_launch: Launcher) -> None:
        error = await self.refused(a_launch())
        assert (error.code, error.field) == ("no_command", "command")

    async def test_name_that_another_container_has(self, a_launch: Launcher) -> None:
        launch = a_launch("true")
        other = self.api.create_container(IMAGE, ["true"], name=container_name(launch))
        try:
            assert ((error := await self.refused(launch)).code, error.field) == ("name_taken", "name")
        finally:
            self.api.remove_container(other["Id"])

    async def test_memory_too_small_for_any_container(self, a_launch: Launcher) -> None:
        error = await self.refused(a_launch("true", memory=1 << 20))
        assert (error.code, error.field, error.status) == ("memory_too_small", "memory", 400)

    @pytest.mark.parametrize(
        "port", ["80", "x:80", "80:80/icmp", "1:2:3:4:x", "127.0.0.1:20080:80", "20080:0", "20080:65536"]
    )
    async def test_port_that_is_none(self, a_launch: Launcher, port: str) -> None:
        assert ((error := await self.refused(a_launch("true", ports=[port]))).code, error.field) == (
            "bad_port",
            "ports",
        )

    async def test_container_gone_meanwhile(self, a_launch: Launcher) -> None:
        engine_id = (await self.engine.launch(a_launch("sleep", "600"))).engine_id
        self.api.remove_container(engine_id, force=True)
        with pytest.raises(EngineError, match="has ended"):
            await self.engine.pause(engine_id)
        await self.engine.kill(engine_id, grace=1)
        await self.engine.remove(engine_id)

    async def test_running_container_is_not_removed(self, a_launch: Launcher) -> None:
        engine_id = (await self.engine.launch(a_launch("sleep", "600"))).engine_id
        with pytest.raises(EngineError, match="kill it first"):
            await self.engine.remove(engine_id)
        assert [each.condition for each in await self.engine.statuses()] == [Condition.RUNNING]


@pytest.mark.parametrize(
    "sentence",
    [
        "Container 8318 is not paused",
        "Cannot unpause container 8318: cannot resume a running process: unknown",
        "Cannot unpause container 8318: cannot resume a stopped container: unknown",
    ],
)
async def test_what_its_signal_let_go_on_before_it_could_be_unpaused_is_no_failure(sentence: str) -> None:
    client = Client("unix:///nobody/is/here.sock")
    try:
        await client.unless_gone(Mock(side_effect=said_by_docker(sentence)))
        with pytest.raises(EngineError, match="OCI runtime state"):
            await client.unless_gone(Mock(side_effect=said_by_docker("Cannot unpause 8318: OCI runtime state failed")))
    finally:
        client.close()


@pytest.fixture
def bridged() -> Iterator[Dockerd]:
    """A Docker engine whose containers have a network, and so can publish ports."""
    if why_not := have_dockerd():
        pytest.skip(why_not)
    try:
        with private(network=True) as engine:
            yield engine
    except NoBridge as error:
        pytest.skip(str(error))


@pytest.mark.docker
async def test_port_that_somebody_else_has(bridged: Dockerd, open_engine: Opener, a_launch: Launcher) -> None:
    client = docker.APIClient(bridged.address, version="auto")
    await asyncio.to_thread(build_image, client, IMAGE)
    async with open_engine(address=bridged.address) as engine:
        with socket.create_server(("", free_port(""))) as taken:  # of those that nobody is given meanwhile
            ports = [f"{taken.getsockname()[1]}:80/tcp"]
            with pytest.raises(EngineError, match=r"One of the host's ports .* is taken") as caught:
                await engine.launch(a_launch("sleep", "600", ports=ports))
            assert (caught.value.code, caught.value.status, caught.value.field) == ("port_taken", 409, "ports")
        assert client.containers(all=True) == []
        first = await engine.launch(a_launch("sleep", "600", ports=ports))  # retrying is safe
        with pytest.raises(EngineError, match="is taken"):
            await engine.launch(a_launch("sleep", "600", ports=ports))
        await engine.kill(first.engine_id)
        await engine.remove(first.engine_id)
    client.close()


@pytest.fixture
def cramped() -> Iterator[Dockerd]:
    """A Docker engine whose whole disk is 24 MiB."""
    if why_not := have_dockerd():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="dockerd-", ignore_cleanup_errors=True) as folder:
        engine = Dockerd(Path(folder))
        with small_disk(engine.folder / "data", "24m"):
            try:
                engine.start()
                yield engine
            finally:
                engine.stop()


@pytest.mark.docker
async def test_full_disk_is_said_and_leaves_nothing(cramped: Dockerd, open_engine: Opener, a_launch: Launcher) -> None:
    client = docker.APIClient(cramped.address, version="auto")
    await asyncio.to_thread(build_image, client, IMAGE)
    async with open_engine(address=cramped.address) as engine:
        fill(cramped.folder / "data")
        launch = a_launch("true")
        with pytest.raises(EngineError, match="disk is full") as caught:
            await engine.launch(launch)
        assert (caught.value.code, caught.value.status) == ("disk_full", 503)
        (cramped.folder / "data" / "filler").unlink()
        await engine.launch(launch)  # retrying is safe
        await eventually(lambda: engine._watch.changes.known()[0].condition is Condition.ENDED)
        await engine.remove(engine._watch.changes.known()[0].engine_id)
    client.close()

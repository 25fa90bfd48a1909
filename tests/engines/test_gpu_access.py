"""How GPUs reach a container: by the way this host has, by UUID, and only those that were assigned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.engines.base import EngineError, Launch
from scheduler.engines.docker import gpu_access, versions
from scheduler.engines.docker.gpu_access import Access, Cdi, Mount, NvidiaRuntime, Raw, Simulated, detect, has_cdi
from scheduler.engines.docker.images import Image
from scheduler.engines.docker.options import DefaultLimits, Given, create_body
from scheduler.engines.runtime_environment import Simulation
from web.spec.inside.reserved import SHIM

FIRST, SECOND = "GPU-1a2b3c4d-0000-0000-0000-000000000001", "GPU-1a2b3c4d-0000-0000-0000-000000000002"
SIMULATION = Simulation(Path("/build/sim"), Path("/home/card/state"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with two cards whose minors are not their indices, as the kernel module and the driver lay it out."""
    for number, (uuid, minor) in enumerate([(FIRST, 3), (SECOND, 0)]):
        folder = tmp_path / "proc" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t 0000:0{number}:00.0\n"
            f"Device Minor: \t {minor}\n"
        )
    devices, libraries = tmp_path / "dev", tmp_path / "lib"
    devices.mkdir()
    libraries.mkdir()
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (devices / name).touch()
    for name in ("libcuda.so.580.1", "libnvidia-ml.so.580.1", "libnvidia-glcore.so.580.1", "libc.so.6"):
        (libraries / name).touch()
    (libraries / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    (libraries / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.1")
    monkeypatch.setattr(gpu_access, "_loader_cache", list)
    monkeypatch.setattr(gpu_access, "DRIVER_FOLDERS", (str(libraries),))
    return tmp_path


def test_raw_way_gives_the_assigned_cards_nodes_and_the_drivers_libraries(host: Path) -> None:
    added = gpu_access.raw(host / "dev", host / "proc").additions([FIRST])
    assert added.devices == tuple(str(host / "dev" / name) for name in ("nvidia3", "nvidiactl", "nvidia-uvm"))
    mounts = {mount.target: mount.source for mount in added.mounts}
    assert mounts["/run/gpushare-lib/driver/libcuda.so.1"] == str(host / "lib" / "libcuda.so.580.1")
    assert mounts["/run/gpushare-lib/driver/libnvidia-ml.so.1"] == str(host / "lib" / "libnvidia-ml.so.580.1")
    assert not [target for target in mounts if "glcore" in target or "libc.so" in target]
    assert all(mount.read_only for mount in added.mounts)
    assert added.libraries == ("/run/gpushare-lib/driver",)


NO_LIMITS = DefaultLimits(memory=None, cpus=None, pids=None, swap=False)


def docker_body(access: Access, launch: Launch, folder: Path) -> dict[str, Any]:
    """The body of POST /containers/create."""
    given = Given(home=folder, shim=folder / "shim.so", preload=folder / "preload", log_bytes=1 << 20)
    additions = access.additions(launch.gpus)
    return create_body(
        launch, given=given, limits=NO_LIMITS, additions=additions, image=Image(environment=("PATH=/bin",)), places={}
    )


@pytest.mark.parametrize(
    ("way", "requests", "devices"),
    [
        ("runtime", [("nvidia", [SECOND])], []),
        ("cdi", [("cdi", [f"nvidia.com/gpu={SECOND}"])], []),
        ("raw", [], ["nvidia0", "nvidiactl", "nvidia-uvm"]),
    ],
)
def test_docker_is_given_the_assigned_card_and_no_other(
    host: Path, a_launch: Callable[..., Launch], tmp_path: Path, way: str, requests: object, devices: list[str]
) -> None:
    access = gpu_access.raw(host / "dev", host / "proc") if way == "raw" else detect(way, {}, None)
    body = docker_body(access, a_launch("train", gpus=[SECOND]), tmp_path)
    options = body["HostConfig"]
    assert [(each["Driver"], each["DeviceIDs"]) for each in options["DeviceRequests"]] == requests
    nodes = [str(host / "dev" / name) for name in devices]
    assert [(each["PathOnHost"], each["PathInContainer"]) for each in options["Devices"]] == [(n, n) for n in nodes]
    # CUDA sees the assigned cards alone, and counts them from 0: programs such as vLLM read numbers there.
    assert {f"NVIDIA_VISIBLE_DEVICES={SECOND}", "CUDA_VISIBLE_DEVICES=0"} <= set(body["Env"])
    assert FIRST not in str(body)
    two = docker_body(NvidiaRuntime(), a_launch("train", gpus=[SECOND, FIRST]), tmp_path)
    assert {f"NVIDIA_VISIBLE_DEVICES={SECOND},{FIRST}", "CUDA_VISIBLE_DEVICES=0,1"} <= set(two["Env"])
    assert "Runtime" not in options


def test_where_the_toolkits_hooks_load_what_a_container_names_it_names_nothing(
    a_launch: Callable[..., Launch], tmp_path: Path
) -> None:
    """CVE-2025-23266: they run as root on the host."""
    given = Given(home=tmp_path, shim=tmp_path, preload=tmp_path, log_bytes=1, loaders=False)
    image = ("LD_PRELOAD=/proc/self/cwd/x.so", "LD_LIBRARY_PATH=/proc/self/cwd")

    def body(**environment: str) -> dict[str, Any]:
        launch, additions = a_launch("x", gpus=[SECOND], environment=environment), Cdi().additions([SECOND])
        return create_body(
            launch, given=given, limits=NO_LIMITS, additions=additions, image=Image(environment=image), places={}
        )

    said = body()["Env"]
    assert f"LD_PRELOAD={SHIM}" in said
    assert "LD_LIBRARY_PATH" in said  # without a value: the image's is taken away
    with pytest.raises(EngineError, match=r"older than 1\.17\.8"):
        body(LD_LIBRARY_PATH="/proc/self/cwd")


def test_version_of_the_toolkit_is_what_its_program_says() -> None:
    said = ["echo", "NVIDIA Container Toolkit CLI version 1.17.4\ncommit: 9b69590c7428470a72f2ae05f826412976af1395"]
    assert versions.toolkit(said) == [{"Name": versions.TOOLKIT, "Version": "1.17.4"}]
    assert versions.toolkit(["false"]) == versions.toolkit(["/no/such"]) == versions.toolkit(["echo", "hello"]) == []


def test_raw_way_brings_the_driver_s_own_program(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = host / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(host))
    added = gpu_access.raw(host / "dev", host / "proc").additions([FIRST])
    assert Mount(str(program), "/usr/bin/nvidia-smi") in added.mounts


def test_raw_way_knows_no_other_card(host: Path) -> None:
    with pytest.raises(EngineError, match="No device node is known for GPU-other"):
        gpu_access.raw(host / "dev", host / "proc").additions(["GPU-other"])


def test_runtime_and_cdi_name_uuids() -> None:
    (request,) = NvidiaRuntime().additions([FIRST, SECOND]).requests
    assert (request["Driver"], request["DeviceIDs"], request.get("Count")) == ("nvidia", [FIRST, SECOND], None)
    (request,) = Cdi().additions([SECOND]).requests
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", [f"nvidia.com/gpu={SECOND}"])


def test_simulated_card_comes_with_its_libraries_and_its_state(a_launch: Callable[..., Launch], tmp_path: Path) -> None:
    added = Simulated(SIMULATION).additions([FIRST])
    assert added.mounts == (
        Mount("/build/sim", "/run/gpushare-lib/sim"),
        Mount("/home/card", "/run/gpushare-card", read_only=False),
    )
    assert (added.state, added.devices, added.requests) == ("/run/gpushare-card/state", (), ())
    body = docker_body(Simulated(SIMULATION), a_launch("train", gpus=[SECOND]), tmp_path)
    assert f"CUDA_VISIBLE_DEVICES={SECOND}" in body["Env"]  # it has all cards inside: a number would be another's


def specification(folder: Path, *names: str) -> str:
    devices = "".join(f"- name: {name}\n" for name in names)
    (folder / "nvidia.yaml").write_text(f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{devices}")
    return str(folder)


def test_cdi_is_only_taken_if_it_names_cards_by_uuid(tmp_path: Path) -> None:
    assert not has_cdi(["/no/such/folder", str(tmp_path)])
    assert not has_cdi([specification(tmp_path, "0", "1", "all")])
    assert has_cdi([specification(tmp_path, "0", FIRST, "all")])


@pytest.mark.parametrize(
    ("configured", "runtimes", "cdi", "nodes", "simulation", "expected"),
    [
        ("auto", {"runc": {}, "nvidia": {}}, True, True, None, Cdi),
        ("auto", {"runc": {}, "nvidia": {}}, False, True, None, Raw),
        ("auto", {"runc": {}, "nvidia": {}}, False, False, None, NvidiaRuntime),
        ("auto", {"runc": {}}, False, False, None, Raw),
        ("runtime", {}, True, True, None, NvidiaRuntime),
        ("cdi", {"nvidia": {}}, False, True, None, Cdi),
        ("raw", {"nvidia": {}}, True, True, None, Raw),
        ("runtime", {"nvidia": {}}, True, True, SIMULATION, Simulated),
    ],
)
def test_ways_are_tried_in_order_unless_one_is_configured(
    tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch, configured: str, runtimes: object, cdi: bool,
    nodes: bool, simulation: Simulation | None, expected: type,
) -> None:  # fmt: skip
    """The runtime's hook last: what it adds is gone after `docker update`."""
    found = gpu_access.raw(host / "dev", host / "proc") if nodes else Raw({}, (), {})
    monkeypatch.setattr(gpu_access, "raw", lambda: found)
    folder = specification(tmp_path, FIRST) if cdi else str(tmp_path)
    info = {"Runtimes": runtimes, "CDISpecDirs": [folder]}
    assert isinstance(detect(configured, info, simulation), expected)


def test_way_that_does_not_exist_is_a_sentence() -> None:
    with pytest.raises(EngineError, match="can be auto, runtime, cdi or raw"):
        detect("magic", {}, None)

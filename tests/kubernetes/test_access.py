"""How a card reaches a container of a cluster: by its device nodes, or by NVIDIA's own CDI device."""

from pathlib import Path

import pytest

from scheduler.engines.docker.gpu_access import Raw
from scheduler.engines.runtime_environment import RuntimeEnvironment
from scheduler.kubernetes import runtime_environment
from scheduler.kubernetes.counting import _given
from scheduler.kubernetes.runtime_environment import RuntimeEnvironments
from tests.kubernetes.cluster import runtime
from tests.support.host import GIB
from web.spec.inside.reserved import SHIM

UUIDS = {"gpu-1": "GPU-1", "gpu-2": "GPU-2"}
UID = "5d1c9a52-0000-4000-8000-000000000000"


@pytest.fixture
def outfitter(tmp_path: Path) -> RuntimeEnvironments:
    """Of a host with two real cards, as far as files show that."""
    shim = tmp_path / "libgpushare.so"
    shim.touch()
    (tmp_path / "home").mkdir()
    return RuntimeEnvironments(
        tmp_path / "cdi", tmp_path / "home", RuntimeEnvironment(shim), "cdi", dict.fromkeys(UUIDS.values(), 8 * GIB)
    )


def cards(*devices: str) -> dict[str, tuple[str, int]]:
    return {device: (UUIDS[device], 2 * GIB) for device in devices}


def test_nvidias_own_device_brings_the_card_and_ours_the_quota(outfitter: RuntimeEnvironments, tmp_path: Path) -> None:
    outfitter.write(UID, cards("gpu-1", "gpu-2"), tmp_path)
    assert outfitter.ids(UID, "gpu-2", cards("gpu-1", "gpu-2")) == [
        f"gpushare.dev/claim={UID}.gpu-2",
        "nvidia.com/gpu=GPU-2",
    ]
    ours = runtime.edits(tmp_path / "cdi", [f"gpushare.dev/claim={UID}.gpu-2"])
    assert not any("deviceNodes" in each for each in ours)
    assert ["GPUSHARE_CARD_GPU_2=1"] in [each.get("env") for each in ours]
    environment = [entry for each in ours for entry in each["env"]]
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment
    assert not [entry for entry in environment if entry.startswith("CUDA_VISIBLE_DEVICES")]


def test_device_nodes_and_the_drivers_libraries_where_nvidia_has_no_specification(
    outfitter: RuntimeEnvironments, tmp_path: Path
) -> None:
    library = tmp_path / "libcuda.so.580"
    library.touch()
    nodes = {"GPU-1": "/dev/nvidia0", "GPU-2": "/dev/nvidia1"}
    outfitter._access = Raw(nodes, ("/dev/nvidiactl", "/dev/nvidia-uvm"), {"libcuda.so.1": str(library)})
    outfitter.write(UID, cards("gpu-1", "gpu-2"), tmp_path)
    ids = outfitter.ids(UID, "gpu-2", cards("gpu-1", "gpu-2"))
    assert ids == [f"gpushare.dev/claim={UID}.gpu-2"]
    flags = runtime.flags(tmp_path / "cdi", list(ids))
    given = [flags[at + 1] for at, word in enumerate(flags) if word == "--device"]
    assert given == [f"{path}:{path}:rw" for path in ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")]
    assert f"{library}:/run/gpushare-lib/driver/libcuda.so.1:ro" in flags
    assert any(word.startswith("LD_LIBRARY_PATH=/run/gpushare-lib/driver") for word in flags)


def test_without_cdi_the_same_is_reported_in_the_device_plugins_words(
    outfitter: RuntimeEnvironments, tmp_path: Path
) -> None:
    outfitter._access = Raw({"GPU-1": "/dev/nvidia0"}, ("/dev/nvidiactl",), {})
    given = _given(*outfitter.specification(UID, cards("gpu-1"), tmp_path))
    assert list(given.devices) == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert (SHIM, True) in [(there, fixed) for there, _, fixed in given.mounts]
    assert given.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert given.cdi == []


def test_with_nvidias_specification_the_device_plugin_names_its_device(
    outfitter: RuntimeEnvironments, tmp_path: Path
) -> None:
    assert _given(*outfitter.specification(UID, cards("gpu-1"), tmp_path)).cdi == ["nvidia.com/gpu=GPU-1"]
    assert runtime_environment.NVIDIAS == ("/etc/cdi", "/var/run/cdi")

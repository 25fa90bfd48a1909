"""GPUs, and how Docker gives them to containers."""

import shutil
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import docker as sdk
import pynvml
from django.conf import settings

from appliance.doctor.finding import Finding, fine, note, wrong
from scheduler.engines.base import EngineError
from scheduler.engines.docker import gpu_access as ways
from scheduler.engines.docker.client import DirectClient
from scheduler.engines.docker.versions import outdated
from scheduler.gpus import NoGpus, parse
from web.sizes import format_size

LITTLE = 20 << 30  # bytes: an image of PyTorch, and as much to unpack it
FAULTY = (  # the first driver, and what others reported of it (NVIDIA/cuda-checkpoint); the newest first
    (610, "A program with several threads can crash when it is locked for a turn (#58)."),
    (595, "Killing a program that came back from host memory can hang the host (#53)."),
)
SWAPS = 570  # the first driver that can move a process's memory away
ANSWERS_WITHIN = 10  # seconds


def driver() -> Iterator[Finding]:
    try:
        simulation = parse(settings.GPUSHARE_GPUS).simulation
    except NoGpus as error:
        yield wrong(f"{error}.", "The scheduler does not start.", "See GPUSHARE_GPUS in docs/settings.md.")
        return
    if settings.GPUSHARE_GPUS.startswith("sim"):
        yield fine("not needed: GPUSHARE_GPUS asks for a simulated card")
        return
    tell, means = (note, "A simulated card stands in for a GPU.") if simulation else (wrong, "No GPU can be shared.")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield tell(
            f"NVIDIA's driver does not answer: {error}.",
            means,
            "`nvidia-smi` has to work first; after an upgrade of the driver, reboot.",
        )
        return
    try:
        version, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()
    if count == 0:
        yield tell(
            f"Driver {version} sees no GPU.",
            means,
            "`lspci | grep -i nvidia` and `dmesg | grep -i nvrm` show why.",
        )
    elif int(version.partition(".")[0]) < SWAPS:
        yield note(
            f"Driver {version}, {count} GPUs.",
            "Swapping needs 570 or newer; all else works.",
            "Upgrade the driver, or hide this note with GPUSHARE_SWAP_MEMORY=0.",
        )
    elif fault := next((fault for since, fault in FAULTY if int(version.partition(".")[0]) >= since), ""):
        yield note(
            f"Driver {version}, {count} GPUs.",
            fault,
            "Use 580, or set GPUSHARE_COMPUTE=shared and GPUSHARE_SWAP_MEMORY=0; see docs/swapping.md, Drivers.",
        )
    else:
        yield fine(f"Driver {version}, {count} GPUs.")


@cache
def ask_docker(address: str) -> tuple[dict[str, Any], list[Any]]:
    if address.startswith("unix://"):  # in the kernel's few words, and the SDK would leave its socket open
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(address.removeprefix("unix://"))
    client = DirectClient(address, version="auto", timeout=ANSWERS_WITHIN)
    try:
        return client.info(), client.version().get("Components") or []
    finally:
        client.close()


def docker() -> Iterator[Finding]:
    address = settings.GPUSHARE_DOCKER_HOST
    if settings.GPUSHARE_ENGINE == "process":
        yield fine("not needed: GPUSHARE_ENGINE asks for local processes")
        return
    try:
        info, components = ask_docker(address)
    except (sdk.errors.DockerException, OSError) as error:
        tell = note if settings.GPUSHARE_ENGINE == "auto" else wrong
        yield tell(
            f"Docker does not answer at {address}: {error}.",
            "No container can be started." if tell is wrong else "Containers will be plain local processes.",
            "`systemctl start docker`. Users other than root must be in the group docker. See GPUSHARE_DOCKER_HOST.",
        )
        return
    yield fine(
        f"Docker {info.get('ServerVersion')}, {info.get('CgroupDriver')} (cgroup version "
        f"{info.get('CgroupVersion', '1')}).",
    )
    yield from _room_of(Path(info.get("DockerRootDir") or "/nowhere"))
    for sentence in outdated(components):
        yield note(sentence, "A hostile image may reach the host.", "Upgrade Docker and runc.")
    if any("rootless" in option for option in info.get("SecurityOptions") or []):
        yield note(
            "Docker runs rootless.",
            "Containers together have no limit of host memory.",
            "Use the system's Docker.",
        )


def _room_of(root: Path) -> Iterator[Finding]:
    """Docker may be on another machine, or its folder not for us: then there is nothing to say."""
    try:
        free = shutil.disk_usage(root).free
    except OSError:
        return
    if free < LITTLE:
        yield note(
            f"{format_size(free)} are free at {root}, where Docker keeps images and containers.",
            "Images cannot be pulled, and programs cannot write.",
            "`docker system prune`, or move Docker's data-root to a larger disk.",
        )


def gpu_access() -> Iterator[Finding]:
    try:
        if settings.GPUSHARE_ENGINE == "process" or parse(settings.GPUSHARE_GPUS).simulation:
            yield fine("not needed")
            return
        info, _ = ask_docker(settings.GPUSHARE_DOCKER_HOST)
        way = ways.detect(settings.GPUSHARE_GPU_ACCESS, info, None)
    except (sdk.errors.DockerException, OSError, NoGpus):
        return  # its own check says so
    except EngineError as error:
        yield wrong(str(error), "No container gets a GPU.", "See GPUSHARE_GPU_ACCESS in docs/settings.md.")
        return
    if isinstance(way, ways.NvidiaRuntime) and "nvidia" not in info.get("Runtimes", {}):
        yield wrong(
            "Docker does not have NVIDIA's runtime.",
            "No container gets a GPU.",
            "Install nvidia-container-toolkit, `nvidia-ctk runtime configure`, `systemctl restart docker`.",
        )
    elif isinstance(way, ways.Raw) and not (way.nodes and way.libraries):
        yield wrong(
            "There are no device nodes of a GPU, or no libraries of its driver.",
            "No container gets a GPU.",
            "Install the driver, then nvidia-container-toolkit.",
        )
    elif isinstance(way, ways.NvidiaRuntime):
        yield note(
            "GPUs come into containers by the hook of NVIDIA's runtime.",
            "After `docker update` or `systemctl daemon-reload` a program that starts in a container finds no GPU.",
            "`nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml`, or "
            "GPUSHARE_GPU_ACCESS=raw.",
        )
    else:
        yield fine(type(way).__name__)

"""How GPUs reach a Docker container: four ways behind one question, "what must be added for these GPUs?".

In order of preference: CDI, raw device nodes with the driver's libraries, the NVIDIA runtime's device request, and, for
a simulated card, its libraries and state file. Always by UUID, and only the GPUs named: a container never gets "all",
and never an index, which means another card after a reboot.

The runtime's hook adds the device nodes behind Docker's back. `docker update`, which is used around each move to host
memory, and `systemctl daemon-reload` write the device rules anew, as Docker knows them: programs that start after that
find no GPU (NVIDIA/nvidia-container-toolkit#138, #857, #1227). Docker knows the nodes of the other two.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from scheduler.engines.base import EngineError
from scheduler.engines.runtime_environment import Simulation
from web.spec.inside.reserved import CARD, LIBRARIES

# What a CUDA program loads from the driver, by the names it asks for. A driver release has some of them only.
DRIVER_LIBRARIES = re.compile(
    r"lib(cuda|cudadebugger|nvidia-ml|nvidia-ptxjitcompiler|nvidia-nvvm|nvidia-nvvm70|nvidia-gpucomp|nvidia-opencl"
    r"|nvidia-fatbinaryloader|nvidia-cfg)\.so\.[0-9.]+"
)
DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
SMI = "nvidia-smi"  # images do not bring it: it is the driver's
# Every card's node may be used, so that a container can be moved to another card; inside are those of its own cards
# alone, and nothing inside can make one (launching/card_nodes.py).
EVERY_CARD = ("c 195:* rw",)  # NVIDIA's major number (Documentation/admin-guide/devices.txt of Linux)
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Additions:
    """`requests` are Docker's DeviceRequests, `devices` host paths, `libraries` folders inside for the loader.

    `alone`: no other GPU is inside. `rules`: which nodes may be used at all, if they are there.
    """

    requests: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    libraries: tuple[str, ...] = ()
    state: str | None = None
    alone: bool = True
    rules: tuple[str, ...] = ()


class Access(Protocol):
    toolkit: ClassVar[bool]
    """NVIDIA's Container Toolkit does it, whose hooks run on the host beside each container's start."""

    def additions(self, gpus: Sequence[str]) -> Additions:
        """What a container needs to reach these GPUs. Raises EngineError."""


class NvidiaRuntime:
    toolkit: ClassVar[bool] = True

    def additions(self, gpus: Sequence[str]) -> Additions:
        wanted = {"Driver": "nvidia", "DeviceIDs": list(gpus), "Capabilities": [["gpu", "compute", "utility"]]}
        return Additions(requests=(wanted,), rules=EVERY_CARD)


class Cdi:
    toolkit: ClassVar[bool] = True

    def additions(self, gpus: Sequence[str]) -> Additions:
        wanted = {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu}" for gpu in gpus]}
        return Additions(requests=(wanted,), rules=EVERY_CARD)


@dataclass(frozen=True, slots=True)
class Raw:
    """`nodes` maps a UUID to its device node; `control` are the nodes that every CUDA program opens.

    `libraries` maps the name a program asks for to the file that the host has for it.
    """

    toolkit: ClassVar[bool] = False

    nodes: Mapping[str, str]
    control: tuple[str, ...]
    libraries: Mapping[str, str]
    programs: Mapping[str, str] = field(default_factory=dict)  # place in the container → the host's file

    @property
    def complete(self) -> bool:
        return bool(self.nodes and self.control and self.libraries)

    def additions(self, gpus: Sequence[str]) -> Additions:
        if unknown := [gpu for gpu in gpus if gpu not in self.nodes]:
            raise EngineError(f"No device node is known for {', '.join(unknown)}.", code="no_such_gpu", field="gpus")
        folder = f"{LIBRARIES}/driver"
        return Additions(
            devices=(*(self.nodes[gpu] for gpu in gpus), *self.control),
            mounts=(
                *(Mount(path, f"{folder}/{name}") for name, path in self.libraries.items()),
                *(Mount(path, place) for place, path in self.programs.items()),
            ),
            libraries=(folder,),
            rules=EVERY_CARD,
        )


@dataclass(frozen=True, slots=True)
class Simulated:
    toolkit: ClassVar[bool] = False

    simulation: Simulation

    def additions(self, gpus: Sequence[str]) -> Additions:
        libraries = f"{LIBRARIES}/sim"
        state = self.simulation.state
        mounts = (Mount(str(self.simulation.libraries), libraries), Mount(str(state.parent), CARD, read_only=False))
        return Additions(mounts=mounts, libraries=(libraries,), state=f"{CARD}/{state.name}", alone=False)


def detect(configured: str, info: Mapping[str, Any], simulation: Simulation | None) -> Access:
    """The way that this host and this Docker engine have. `configured` is `auto`, or names one.

    `info` is Docker's own (GET /info). Raises EngineError if the configured way does not exist.
    """
    if simulation is not None:
        return Simulated(simulation)
    match configured:
        case "cdi":
            return Cdi()
        case "raw":
            return raw()
        case "runtime":
            return NvidiaRuntime()
        case "auto":
            if has_cdi(info.get("CDISpecDirs") or []):
                return Cdi()
            found = raw()
            return NvidiaRuntime() if not found.complete and "nvidia" in info.get("Runtimes", {}) else found
    raise EngineError(f"GPUSHARE_GPU_ACCESS is {configured!r}; it can be auto, runtime, cdi or raw.")


def has_cdi(folders: Iterable[str]) -> bool:
    """Whether a CDI specification names NVIDIA GPUs by UUID (`nvidia-ctk cdi generate` can name them by index only)."""
    for folder in map(Path, folders):
        for path in [*folder.glob("*.yaml"), *folder.glob("*.json")]:
            text = path.read_text(errors="replace")
            if "nvidia.com/gpu" in text and re.search(r"\bGPU-[0-9a-f]{8}-", text):
                return True
    return False


def raw(devices: Path = Path("/dev"), driver: Path = Path("/proc/driver/nvidia/gpus")) -> Raw:
    control = tuple(str(devices / name) for name in CONTROL_NODES if (devices / name).exists())
    nodes = {uuid: str(devices / f"nvidia{minor}") for uuid, minor in _minors(driver).items()}
    smi = shutil.which(SMI)
    return Raw(nodes, control, driver_libraries(), {f"/usr/bin/{SMI}": os.path.realpath(smi)} if smi else {})


def node_of(gpu: str, driver: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """The host's device node of a card. Raises EngineError."""
    if (minor := _minors(driver).get(gpu)) is None:
        raise EngineError(f"No device node is known for {gpu}.", code="no_such_gpu")
    return f"/dev/nvidia{minor}"


def _minors(driver: Path) -> dict[str, int]:
    """UUID → device minor, from the kernel module's own files, else from NVML."""
    found = {}
    for path in driver.glob("*/information"):
        fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        found[fields["GPU UUID"].strip()] = int(fields["Device Minor"])
    return found or _minors_by_nvml()


def _minors_by_nvml() -> dict[str, int]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {pynvml.nvmlDeviceGetUUID(handle): pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles}
    finally:
        pynvml.nvmlShutdown()


def driver_libraries() -> dict[str, str]:
    """The driver's libraries of this host: the name that programs ask for → the real file."""
    found: dict[str, str] = {}
    for path in [
        *_loader_cache(),
        *(path for folder in DRIVER_FOLDERS for path in sorted(Path(folder).glob("lib*.so.*"))),
    ]:
        if DRIVER_LIBRARIES.fullmatch(path.name) and path.exists():
            found.setdefault(path.name, str(path.resolve()))
    return found


def _loader_cache() -> list[Path]:
    """The libraries that the loader knows (`ldconfig -p`), 64-bit ones."""
    try:
        lines = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [Path(line.split("=>")[1].strip()) for line in lines.splitlines() if "=>" in line and "64" in line]

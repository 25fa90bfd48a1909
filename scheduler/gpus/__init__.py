"""NVML: which GPUs there are, what is in use on them, and by which processes.

`GPUSHARE_GPUS` chooses: `nvidia` is what the driver shows, `nvidia:cap=6GiB` the same with each card taken for no
larger than that, `sim:2x5GiB` two simulated cards, `auto` the first of `nvidia` and `sim:1x5GiB` that is there
(`auto:cap=5GiB`: of `nvidia:cap=5GiB`).

NVML answers within microseconds to milliseconds, so every call runs in a thread of its own: a decision never waits.
"""

import asyncio
import ctypes
import errno
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pynvml

import shim.sim
from scheduler import clock, threads
from scheduler.gpus.sampling import Busyness, Sampling, Work
from scheduler.gpus.xids import Xids
from shim.binding import UUID_SIZE
from web.sizes import parse_size

PROBE = Path(__file__).with_name("context_probe.py")
log = logging.getLogger(__name__)
T = TypeVar("T")

MIB = 1 << 20
RESERVE = 128 * MIB  # of a real card: the driver's own needs and what fragmentation makes unusable
CONTEXT_SECONDS = 60.0  # the first context after a boot, without persistence mode, can take long
USUAL_CONTEXT = 600 * MIB  # where it was never measured; an H200 takes 526 MiB
DEFAULT_SIMULATION = "sim:1x5GiB"


class NoGpus(Exception):
    """There is nothing to share; the message says what to do."""


class NotMeasured(Exception):
    """What a context takes is not known; the message says why."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What `GPUSHARE_GPUS` asks for: cards of a simulation, or the driver's, each taken for at most `cap` bytes."""

    simulation: str = ""
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU. `total` is its size as this appliance sees it: the cap, if one is set."""

    uuid: str
    index: int
    name: str
    total: int
    physical: int
    reserve: int
    simulated: bool
    architecture: int = 0  # NVML's number (nvmlDeviceArchitecture_t); 0: not known
    shutdown_at: int | None = None  # degrees Celsius at which it switches itself off

    def capacity(self, foreign: int) -> int:
        """What containers may hold together while `foreign` bytes belong to nobody we know."""
        return max(0, min(self.total, self.physical - self.reserve - foreign))


@dataclass(frozen=True, slots=True)
class Reading:
    """One card at one time; what NVML cannot tell is None.

    `processes` maps a host pid to its bytes, `busy` to the per cent of the time since the last look that it computed
    (0 left out).
    """

    used: int
    processes: Mapping[int, int] = field(default_factory=dict)
    busy: Mapping[int, float] | None = None
    utilisation: int | None = None
    temperature: int | None = None
    power: float | None = None
    ecc_errors: int | None = None  # uncorrected, since the driver was loaded
    xid: int | None = None  # a critical error since the last look
    remap_pending: bool = False  # a row of its memory is to be remapped, at the next reset (nvmlDeviceGetRemappedRows)
    remap_failed: bool = False  # that was not possible

    def computed(self, pids: Iterable[int]) -> float | None:
        """Per cent of the time since the last look that these computed; None where NVML does not tell them apart.

        Of processes that it shows as busier together than a card can be, each figure is reduced in proportion.
        """
        if self.busy is None:
            return None
        return 100.0 * sum(self.busy.get(pid, 0.0) for pid in pids) / max(100.0, sum(self.busy.values()))


def parse(spec: str) -> Choice:
    """Decodes `GPUSHARE_GPUS`. Raises NoGpus for what it does not know."""
    if match := re.fullmatch(r"(auto|nvidia)(?::cap=(.+))?", spec):
        real = Choice(cap=_size(spec, match[2]) if match[2] else None)
        return real if match[1] == "nvidia" or real_cards() else Choice(DEFAULT_SIMULATION)
    if spec == "sim":
        return Choice(DEFAULT_SIMULATION)
    if match := re.fullmatch(r"sim:(?:(\d+)x)?(.+)", spec):
        return Choice(f"sim:{match[1] or 1}x{_size(spec, match[2])}")
    raise NoGpus(f"GPUSHARE_GPUS={spec} is none of: auto, nvidia, nvidia:cap=6GiB, sim:2x5GiB")


def _size(spec: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise NoGpus(f"GPUSHARE_GPUS={spec}: {error}") from None


def simulated_card(simulation: str, home: Path, build: Path) -> Path:
    """The state file of this simulation, made if it is not there. It outlives the scheduler, as a card does."""
    count, size = shim.sim.parse(simulation)
    path = home / "card" / f"{count}x{size}"
    if os.path.lexists(path) and not shim.sim.is_whole(path, build):
        log.warning("The simulated card %s was cut off, overwritten or replaced: a new one takes its place.", path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()  # programs on it have lost it anyway
    if not os.path.lexists(path):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # programs open what is in it, no more
        try:
            shim.sim.create(simulation, path, build)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise NoGpus(
                    f"GPUSHARE_GPUS: there can be no {simulation}, but 1 to 16 GPUs such as sim:2x5GiB"
                ) from None
            raise
    return path


class Gpus:
    """The cards of this host. One thread does all the asking, so answers are in order."""

    def __init__(self) -> None:
        self.cards: dict[str, Card] = {}
        self.lost: set[str] = set()  # GPUs that have fallen off the bus, by the last reading
        self.contexts: dict[str, int] = {}  # GPU → bytes that one CUDA context takes there, as far as is known
        self.unmeasured: set[str] = set()  # GPUs where that is a guess
        self.driver = ""
        self.simulation: Path | None = None  # the state file, if the cards are simulated
        self._handles: dict[str, Any] = {}
        self._busyness: dict[str, Busyness] = {}
        self._sampling: dict[str, Sampling] = {}
        self.environment: dict[str, str] = {}  # what a program needs to reach these cards
        self._thread = threads.pool(1, "nvml")

    @classmethod
    async def open(cls, spec: str, home: Path, build: Path) -> "Gpus":
        """Finds the cards and measures a context on each where that can be done now. Raises NoGpus."""
        gpus = cls()
        await gpus._ask(gpus._start, parse(spec), home, build)
        gpus.contexts.update(dict.fromkeys(gpus.cards, USUAL_CONTEXT))
        gpus.unmeasured.update(gpus.cards)
        await gpus.measure_contexts()
        return gpus

    async def measure_contexts(self) -> list[str]:
        """Measures a context on each card where that has not been done; those where it has been now."""
        wanted = sorted(self.unmeasured)
        found = dict(zip(wanted, await asyncio.gather(*map(self._measure_context, wanted)), strict=True))
        measured = {uuid: context for uuid, context in found.items() if context}
        self.contexts.update(measured)
        self.unmeasured.difference_update(measured)
        return list(measured)

    def suppose(self, contexts: Mapping[str, int]) -> None:
        """What an earlier scheduler has measured is a better guess than any where it cannot be measured now."""
        self.contexts.update({uuid: contexts[uuid] for uuid in self.unmeasured if contexts.get(uuid)})

    async def close(self) -> None:
        await self._ask(self._xids.close)
        await self._ask(pynvml.nvmlShutdown)
        self._thread.shutdown()

    async def read(self) -> dict[str, Reading]:
        """Every card, now. A card that does not answer is left out."""
        return await self._ask(self._read)

    async def processes(self, uuid: str) -> Mapping[int, int]:
        """Who uses this card, now. Raises NVMLError."""
        return await self._ask(self._processes, uuid)

    async def work(self, uuids: Iterable[str]) -> dict[str, Work | None]:
        """What was computed on each card since the last call; None: nothing, or it does not tell."""
        return await self._ask(lambda: {uuid: self._work(uuid) for uuid in uuids})

    async def _ask(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    def _start(self, choice: Choice, home: Path, build: Path) -> None:
        if choice.simulation:
            self.simulation = simulated_card(choice.simulation, home, build)
            self.environment = {"GPUSHARE_SIM": str(self.simulation), "LD_LIBRARY_PATH": str(build / "sim")}
            os.environ["GPUSHARE_SIM"] = str(self.simulation)
            # A real driver's library may be loaded by now, under the same name.
            pynvml.nvmlLib = shim.sim.load_nvml(build)
        try:
            pynvml.nvmlInit()
            self.driver = pynvml.nvmlSystemGetDriverVersion()
            for index in range(pynvml.nvmlDeviceGetCount()):
                card, handle = _describe(index, choice)
                self.cards[card.uuid], self._handles[card.uuid] = card, handle
        except pynvml.NVMLError as error:
            raise NoGpus(f"NVML does not answer: {error}. Load the driver, or set GPUSHARE_GPUS=sim") from None
        if not self.cards:
            raise NoGpus("NVML shows no GPU. Set GPUSHARE_GPUS=sim to try the appliance with a simulated one")
        self._xids = Xids(self._handles)

    def _read(self) -> dict[str, Reading]:
        readings, lost, xids = {}, set(), self._xids.take()
        for uuid, handle in self._handles.items():
            try:
                rows = _if_known(pynvml.nvmlDeviceGetRemappedRows, handle) or [0] * 4
                readings[uuid] = Reading(
                    used=_memory(handle).used,
                    processes=self._processes(uuid),
                    busy=self._busy(uuid),
                    utilisation=_if_known(lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu, handle),
                    temperature=_if_known(lambda h: pynvml.nvmlDeviceGetTemperature(h, 0), handle),
                    power=_if_known(lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1000, handle),
                    ecc_errors=_if_known(_uncorrected, handle),
                    xid=xids.get(uuid),
                    remap_pending=bool(rows[2]),
                    remap_failed=bool(rows[3]),
                )
            except pynvml.NVMLError as error:
                log.warning("GPU %s: %s", uuid, error)
                if isinstance(error, pynvml.NVMLError_GpuIsLost):
                    lost.add(uuid)
        self.lost = lost
        return readings

    def _processes(self, uuid: str) -> dict[int, int]:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid])
        return {process.pid: process.usedGpuMemory or 0 for process in running}

    def _busy(self, uuid: str) -> dict[int, float] | None:
        now = clock.wall()
        try:
            return self._busyness.setdefault(uuid, Busyness(now)).take(self._utilization(uuid), now)
        except pynvml.NVMLError:
            return None

    def _work(self, uuid: str) -> Work | None:
        now = clock.wall()
        try:
            return self._sampling.setdefault(uuid, Sampling(now)).take(self._utilization(uuid), now)
        except pynvml.NVMLError:
            return None

    def _utilization(self, uuid: str) -> Callable[[int], list[Any]]:
        return partial(pynvml.nvmlDeviceGetProcessUtilization, self._handles[uuid])

    async def _measure_context(self, uuid: str) -> int | None:
        """Bytes that a context takes on this card; None, and the log says why, if that is not known now."""
        try:
            return await self._context_of_a_child(uuid)
        except TimeoutError:
            why = f"no context within {CONTEXT_SECONDS:.0f} s"
        except (NotMeasured, OSError, pynvml.NVMLError) as error:
            why = str(error)
        log.warning("GPU %s: what a context takes cannot be measured now: %s", uuid, why)
        return None

    async def _context_of_a_child(self, uuid: str) -> int:
        """That of a process that makes one and nothing else."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(PROBE), uuid_bytes(uuid).hex()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self.environment},
        )
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            async with asyncio.timeout(CONTEXT_SECONDS):
                if not await child.stdout.readline():
                    raise NotMeasured((await child.stderr.read()).decode().strip())
                if size := (await self.processes(uuid)).get(child.pid):
                    return size
            raise NotMeasured("NVML does not show its process; is this the host's PID namespace?")
        finally:
            if child.returncode is None:
                child.kill()
            await child.communicate()


def _describe(index: int, choice: Choice) -> tuple[Card, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = _memory(handle)
    # What the driver keeps for itself is not there for anybody.
    physical = memory.total - getattr(memory, "reserved", 0)
    total = min(physical, choice.cap) if choice.cap else physical
    card = Card(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        total=total,
        physical=physical,
        reserve=0 if choice.simulation else RESERVE,
        simulated=bool(choice.simulation),
        architecture=_if_known(pynvml.nvmlDeviceGetArchitecture, handle) or 0,
        shutdown_at=_if_known(
            lambda h: pynvml.nvmlDeviceGetTemperatureThreshold(h, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN), handle
        ),
    )
    return card, handle


def _memory(handle: Any) -> Any:
    """Version 2 keeps apart what the driver reserves; older drivers have only the first."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _uncorrected(handle: Any) -> int:
    """Since the driver was loaded: what a reset of the card has mended is not reported for ever."""
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))


def _if_known(call: Callable[[Any], T], handle: Any) -> T | None:
    try:
        return call(handle)
    except pynvml.NVMLError:
        return None


def uuid_bytes(gpu: str) -> bytes:
    """NVML's "GPU-xxxxxxxx-…" as cuDeviceGetUuid gives it."""
    digits = re.sub(r"[^0-9a-f]", "", gpu.split("-", 1)[-1].lower())
    return bytes.fromhex(digits)[:UUID_SIZE].ljust(UUID_SIZE, b"\0")


def real_cards() -> int:
    """How many cards the driver's own NVML shows; 0 where there is no driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    if nvml.nvmlInit_v2():
        return 0
    count = ctypes.c_uint()
    found = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    nvml.nvmlShutdown()
    return count.value if found else 0

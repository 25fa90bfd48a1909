"""What an engine is: the small interface behind which Docker and plain local processes look alike.

An engine starts, freezes and ends containers and tells what it sees. It decides nothing and stores nothing: labels
(Docker) or a folder a container (processes) tell it after a restart which containers are ours.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from scheduler.engines.asked import Asked
from scheduler.engines.placer import Placer

SIGKILLED = 137  # the exit code of what a SIGKILL ended: 128 + 9, as shells and engines tell it
DISK_FULL = "The host's disk is full: nothing can be started until an admin frees some."


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Asked):
    """Of an engine, on this host. `socket_dir` holds gpushare.sock and is mounted read-only."""

    gpus: Sequence[str]
    socket_dir: Path
    log_path: Path


class Condition(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Status:
    """What the engine sees of one container now. `exit_code` is set once it has ended, where it can be known."""

    id: str  # ours
    engine_id: str
    condition: Condition
    exit_code: int | None = None
    started_at: float | None = None  # seconds since the epoch
    finished_at: float | None = None
    reason: str = ""


class Use(NamedTuple):
    """What one container uses of the host: seconds of processors so far, bytes of RAM now."""

    processor: float
    memory: int


class Output(IntEnum):
    OUT = 1
    ERR = 2


@dataclass(frozen=True, slots=True)
class Exec:
    """One more program in a container that runs, with its environment, folder and limits.

    With `interactive` it has a keyboard, with `tty` a terminal of this size. With `streams`, and without `tty`, its
    standard streams are for `Executed.take`, and whoever hangs up ends this program, but not what it has left running.
    """

    command: Sequence[str]
    interactive: bool = False
    tty: bool = False
    rows: int = 24
    columns: int = 80
    streams: bool = False


class Attached(Protocol):
    """The keyboard and screen of a container, or of a program in it."""

    async def read(self) -> tuple[Output, bytes]:
        """What it has written; nothing once it has ended. Until it is read, the container waits in the end."""

    async def write(self, data: bytes) -> None:
        """Returns when it is on its way: a program that does not read holds this up."""

    def end_input(self) -> None:
        """Nothing more will be written. Means nothing to a terminal."""

    async def resize(self, rows: int, columns: int) -> None: ...

    async def close(self) -> None: ...


class Executed(Attached, Protocol):
    """What `Engine.exec` gives. `close` ends the program and its session (setsid), if they have not ended."""

    def take(self) -> list[int]:
        """Of an Exec with `streams`, instead of reading and writing: its input, output and errors, to be closed by
        whoever takes them; or one socket for all, on which Docker frames the output."""

    async def exit_code(self) -> int | None:
        """Once `read` has given nothing; 128 + n for signal n. None where nobody knows."""


@dataclass(frozen=True, slots=True)
class MountUser:
    """A container of somebody else's that has a volume of ours, and may be about to start."""

    engine_id: str
    name: str
    image: str
    command: str  # as one text
    labels: Mapping[str, str]  # its image's among them
    target: str  # where the volume is to be mounted in it
    has_run: bool  # it is not its first start


@dataclass(frozen=True, slots=True)
class Run:
    """One container from the mounting of its volume to its end. `id` is ours; `since`: seconds since the epoch.

    `engine_id` is empty while it is not known which of the volume's containers it is; `sure` once it was seen to be.
    `memory`: its limit of host memory in bytes, as it was started with.
    """

    id: str
    volume: str
    since: float
    log_path: Path
    engine_id: str = ""
    sure: bool = False
    memory: int | None = None


class Mountings(Protocol):
    """What an engine has that runs containers which others start, with a volume of ours: Docker.

    What it sees of those that are expected it tells like that of all others.
    """

    def report_to(self, found: Callable[[str, Mapping[str, Any]], None]) -> None:
        """`found` is called with our id once it is sure which container it is, and what is known of that: name, image,
        command, memory, cpus."""

    @property
    def restarted_at(self) -> float:
        """When the engine was last seen to break off, seconds since the epoch: nothing that it began then goes on."""

    def expect(self, run: Run) -> None: ...

    def again(self, id_: str) -> None:
        """The engine has mounted it once more: what ended before is no end of this run."""

    def forget(self, id_: str) -> None: ...

    async def users(self, volume: str) -> Sequence[MountUser] | None:
        """Who of the containers with this volume may be about to start. None if the engine cannot say now."""

    async def announce(self) -> None:
        """Has the engine ask what volumes we have, so that it knows of us. Raises EngineError."""

    async def recall(self, since: float) -> None:
        """Sees how those ended that are expected and gone by now, as far as the engine remembers. Raises EngineError.

        `since`: seconds since the epoch; it is called once, after all that an earlier scheduler knew are expected.
        """

    def stopped(self, id_: str) -> bool:
        """It does not run any more, as `users` has shown: tells its end, as far as it is known. False: it is not known
        to have begun."""

    async def begin_given_up(self, driver: str, refused: str) -> Sequence[str]:
        """Starts what the engine restarts by itself, and gave up as nobody served volumes of this driver at that time.

        Or as it was refused with these words.

        The names of those that it has started. Raises EngineError.
        """

    async def look(self, id_: str) -> None:
        """Tells what is seen of it now. Raises EngineAway."""


HANGS_UP = 2.0  # seconds from SIGHUP to SIGKILL for a program whose keyboard has gone

Progress = Callable[[str], None]
"""Called with how far the fetching of an image is, in words for people; from any thread."""


class EngineError(Exception):
    """The engine said no. `code` and `status` go into the answer by the REST contract; `str()` is for people."""

    def __init__(self, message: str, *, code: str = "engine_error", status: int = 409, field: str = "") -> None:
        super().__init__(message)
        self.code, self.status, self.field = code, status, field


class EngineAway(EngineError):
    """The engine does not answer; the same call may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_away", status=503)


class Engine(Protocol):
    """All calls are idempotent where that makes sense: what is already so is success."""

    name: str

    @property
    def placer(self) -> Placer | None:
        """Who chooses the host of what is launched; None: it is this one. Known from `start`."""

    @property
    def in_swarm(self) -> bool:
        """Whether a Swarm may place containers here. Known from `start`."""

    @property
    def mountings(self) -> Mountings | None:
        """None if nobody else can have it start containers."""

    @property
    def outdated(self) -> Sequence[str]:
        """What of it is older than it should be, and why: sentences for whoever runs this host. Known from `start`."""

    @property
    def folder(self) -> Path | None:
        """Where on this host it keeps images and containers; None where that is another host, or not known."""

    @property
    def memory_stays(self) -> str:
        """Why what containers have on a card cannot be moved to host memory with it; empty: it can."""

    @property
    def away(self) -> str:
        """Why the engine does not answer at present, for people; empty while it does."""

    async def start(self) -> None:
        """Connects. Raises EngineAway."""

    async def close(self) -> None:
        """Lets go of everything; containers run on."""

    async def image_labels(self, image: str, progress: Progress | None = None) -> Mapping[str, str]:
        """The labels baked into an image, which is fetched if it is not there. EngineError `unknown_image` if not."""

    async def launch(self, launch: Launch, progress: Progress | None = None) -> Status:
        """Creates and starts a container. Raises EngineError or OSError, leaving nothing behind; but EngineAway: it may
        run, or come to run.

        Cancelled, what it has made is seen by then (`statuses`), and nothing comes later.
        """

    async def attach(self, engine_id: str) -> Attached:
        """To one that was launched `interactive` or `tty`: from its start if nobody did before, else from now on."""

    async def exec(self, engine_id: str, asked: Exec) -> Executed:
        """Starts it. It ends with its keyboard, whoever dies: at the latest when this engine is next started."""

    async def pause(self, engine_id: str) -> None: ...

    async def resume(self, engine_id: str) -> None: ...

    async def kill(self, engine_id: str, *, grace: float = 0.0) -> None:
        """Ends it: its image's stop signal (else SIGTERM) and up to `grace` seconds first if grace is not 0, then
        SIGKILL. Paused ones too."""

    async def add_memory(self, engine_id: str, extra: int) -> None:
        """Its limit of host memory, if it has one, is from now on `extra` bytes above what it was launched with."""

    async def give_card(self, engine_id: str, gpu: str) -> None:
        """Programs of it may reach this card (UUID) from now on: it is about to be restored there. EngineError."""

    async def take_card(self, engine_id: str, gpu: str) -> None:
        """They may not any more: it has left that card. EngineError."""

    def require_within(self, id_: str, size: int) -> None:
        """Raises Problem if somebody else has set that this container, by our id, may have less on a card."""

    def memory_left(self) -> int | None:
        """Bytes of host memory that all of them together may still take; None where nothing limits that."""

    def uses(self, engine_ids: Iterable[str]) -> dict[str, Use]:
        """By container, of those that live and can be looked at. Blocking: for a thread, one at a time."""

    async def remove(self, engine_id: str) -> None:
        """Forgets an ended container."""

    async def statuses(self) -> list[Status]:
        """Every container of ours that the engine knows."""

    def changes(self) -> AsyncIterator[Status]:
        """What happens from now on, until `close`. May repeat itself; never silent for good while connected."""

    def drain(self) -> list[Status]:
        """What has happened that `changes` has not reported yet, and will not any more: the caller takes it in."""

    async def first_pid(self, engine_id: str) -> int:
        """The host pid of a process in that container; 0 if none runs. Raises EngineAway."""

    def owns(self, engine_id: str, pid: int) -> bool:
        """Whether the process with this host pid runs inside that container."""

"""`manage.py` with troubles that can be switched on and off from outside: `python -m tests.faults.troubled up`.

A trouble is on while its file is in GPUSHARE_HOME/trouble; see `harm.py` for those that need no help from inside.
Where FAULTS_FASTER is a number, the clock runs so much faster since FAULTS_BEGAN (see soak.py). On SIGUSR2 a process
writes what its event loop has to do to GPUSHARE_HOME/tasks.PID.
"""

import asyncio
import datetime
import errno
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

TROUBLE = Path(os.environ.get("GPUSHARE_HOME", ".")) / "trouble"
SLOW = 0.1  # seconds that a query takes longer


def is_on(name: str) -> bool:
    return os.path.exists(f"{TROUBLE}/{name}")


def _words_of(name: str) -> list[str]:
    try:
        return (TROUBLE / name).read_text().split()
    except OSError:
        return []


def bad_database() -> None:
    """ "slow"; "unwritten": it takes nothing; "unread": it does not answer at all."""
    from django.db import OperationalError
    from django.db.backends.signals import connection_created

    def badly(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        if is_on("slow"):
            time.sleep(SLOW)
        if is_on("unread") or (is_on("unwritten") and sql.startswith(("INSERT", "UPDATE", "DELETE"))):
            raise OperationalError("it is made to fail")
        return execute(sql, *arguments)

    def attach(connection: Any, **_: Any) -> None:
        connection.execute_wrappers.append(badly)

    connection_created.connect(attach, weak=False)


def lost_hints() -> None:
    from appliance.datagrams import Datagrams

    for name in ("send", "group_send"):
        sends = getattr(Datagrams, name)

        async def send(self: Any, *arguments: Any, sends: Any = sends) -> None:
            if not is_on("deaf"):
                await sends(self, *arguments)

        setattr(Datagrams, name, send)


def broken_card() -> None:
    """ "card": NVML fails, as where a card has fallen off the bus; who starts meanwhile finds none."""
    import pynvml

    for name in ("MemoryInfo", "ComputeRunningProcesses", "ProcessUtilization", "HandleByIndex"):
        asks = getattr(pynvml, f"nvmlDeviceGet{name}")

        def ask(*arguments: Any, asks: Any = asks) -> Any:
            if is_on("card"):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return asks(*arguments)

        setattr(pynvml, f"nvmlDeviceGet{name}", ask)
    count = pynvml.nvmlDeviceGetCount
    pynvml.nvmlDeviceGetCount = lambda: 0 if is_on("card") else count()


def failing_calls() -> None:
    """ "fail-CALL": this call of an engine's or of the card helper's fails, by the error that the file names (ERRORS).

    Two words, "late ERROR": it does what it should, and fails then.
    """
    from scheduler.card.helper import CardError, CardHelper, State, Why
    from scheduler.engines.base import EngineAway, EngineError
    from scheduler.engines.docker.engine import DockerEngine
    from scheduler.engines.process.engine import ProcessEngine

    said = "It is made to fail."
    errors: dict[str, Callable[[], Exception]] = {
        "refuses": lambda: EngineError(said),
        "away": lambda: EngineAway(said),
        "full": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        "bug": lambda: RuntimeError(said),
        **{why.value: partial(CardError, why, 1, said) for why in Why},
        "lost": lambda: CardError(Why.FAILED, 1, said, State.FAILED),
    }

    def failing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def maybe(*arguments: Any, **options: Any) -> Any:
            *late, error = _words_of(f"fail-{name}") or [""]
            done = await call(*arguments, **options) if late or not error else None
            if error:
                raise errors[error]()
            return done

        return maybe

    for owner, names in (
        *((engine, ("launch", "pause", "resume", "kill", "remove", "statuses", "add_memory"))
          for engine in (DockerEngine, ProcessEngine)),
        (CardHelper, ("state", "lock", "checkpoint", "restore", "unlock")),
    ):  # fmt: skip
        for name in names:
            setattr(owner, name, failing(name, getattr(owner, name)))


def nobody_computes() -> None:
    """ "idle": by the cards nobody does, so that who holds memory may have to give way."""
    from scheduler.gpus import Reading

    computed = Reading.computed
    Reading.computed = lambda *arguments: 0.0 if is_on("idle") else computed(*arguments)


def often() -> None:
    """What is done each minute, or every few seconds, is done while a play lasts."""
    from scheduler.card import turns
    from scheduler.core.moves import defragmentation
    from scheduler.parts import PERIODS

    PERIODS["housekeeping"], PERIODS["leftovers"], turns.HUNG_FOR = 2.0, 1.0, 1.0
    defragmentation.WAITS, defragmentation.STAYS = 0.3, 0.0


def stepping_clock() -> None:
    """The wall clock goes wrong by as many seconds as the file `clock` says."""
    from django.utils import timezone

    right, now = time.time, timezone.now

    def wrong_by() -> float:
        try:
            return float((TROUBLE / "clock").read_text())
        except (OSError, ValueError):
            return 0.0

    time.time = partial(lambda: right() + wrong_by())  # a function would become a method where a class has it
    timezone.now = lambda: now() + datetime.timedelta(seconds=wrong_by())


def faster(factor: float) -> None:
    """The wall clock runs so much faster, and what the scheduler does each second or minute comes by that clock."""
    from django.db.models.functions import Now
    from django.utils import timezone

    from scheduler import clock
    from scheduler.monitors import measure
    from scheduler.monitors.turns import shares
    from scheduler.parts import PERIODS
    from web.models import hosts
    from web.services import issuing

    began, right = float(os.environ["FAULTS_BEGAN"]), time.time
    ahead = partial(lambda: began + (right() - began) * factor)
    time.time = ahead
    timezone.now = lambda: datetime.datetime.fromtimestamp(ahead(), datetime.UTC)
    boot = clock.boot  # what containers' clocks go by
    clock.boot = partial(lambda: boot() + ahead() - right())  # type: ignore[assignment]
    # Whether a scheduler lives is judged by the database's clock.
    Now.as_sqlite = lambda *_, **__: ("STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', %s, 'unixepoch')", [ahead()])
    for module, name in (
        (measure, "PERIOD"), (measure, "AGAIN"),
        (shares, "LATELY"),  # it keeps what each look has measured for so long
    ):  # fmt: skip
        setattr(module, name, getattr(module, name) / factor)
    for part in ("housekeeping", "sign of life"):
        PERIODS[part] /= factor
    hosts.SIGN_OF_LIFE = issuing.SIGN_OF_LIFE = factor * hosts.SIGN_OF_LIFE


def tell_tasks() -> None:
    """Has every event loop of this process and of its forks tell its tasks when asked."""
    run = asyncio.Runner.run

    def run_with_signal(self: asyncio.Runner, *arguments: Any, **options: Any) -> Any:
        loop = self.get_loop()
        loop.add_signal_handler(signal.SIGUSR2, lambda: write(loop))
        return run(self, *arguments, **options)

    def write(loop: asyncio.AbstractEventLoop) -> None:
        names = Counter(_kind(task) for task in asyncio.all_tasks(loop))
        path = TROUBLE.parent / f"tasks.{os.getpid()}"
        path.with_suffix(".new").write_text("\n".join(f"{count} {name}" for name, count in names.items()))
        path.with_suffix(".new").rename(path)

    asyncio.Runner.run = run_with_signal


def _kind(task: asyncio.Task[Any]) -> str:
    name = task.get_name()
    return getattr(task.get_coro(), "__qualname__", name) if name.startswith("Task-") else name


def main() -> None:
    import django

    stepping_clock()  # before anything else has taken the right one
    django.setup()
    for trouble in (bad_database, lost_hints, broken_card, tell_tasks):
        trouble()
    if factor := float(os.environ.get("FAULTS_FASTER", "0")):
        faster(factor)
    from django.core.management import execute_from_command_line

    execute_from_command_line(["manage.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()

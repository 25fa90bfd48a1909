"""One host to do harm to: a database, an engine, a simulated card, and a scheduler that is started again when it dies.

Everything is asked for by rows, as the web side writes them, and waited for, however often the scheduler ends
meanwhile.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import docker.errors
import requests.exceptions
from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, InterfaceError, connection

from scheduler import proc
from scheduler.engines.docker.options import LABEL
from scheduler.engines.process import tree
from tests.faults.ground import Ground
from tests.faults.placing import SECOND
from tests.faults.stopped import Driver
from tests.faults.traced import died
from tests.support.card import _NVML, BUILD, ROOT
from tests.support.eventually import PATIENCE
from web.models import AllocationEvent, Claim, Command, Container, Gpu, Node
from web.services.issuing import hint

T = TypeVar("T")
GIB, MIB = 1 << 30, 1 << 20


class Wrong(Exception):
    """A promise was broken; the message says which."""


class World:
    """`environment`: what the scheduler runs with, beside this process's own."""

    def __init__(self, ground: Ground, home: Path | None = None, **environment: str) -> None:
        self.ground, self.workload, self.docker = ground, ground.workload, ground.docker
        self.home = home or ground.home
        self.starts = 0
        self.others: list[World] = []  # beside this one, as long as it is there
        self._environment = {**os.environ, "FAULTS_SWARM": str(ground.home / "swarm"), **environment}
        self._log = (self.home / "scheduler.log").open("ab")
        self._traced = ""
        self._nursery: subprocess.Popen[str] | None = None
        self._alive: int | None = None
        self._changed = threading.Condition()
        self._nvml: subprocess.Popen[str] | None = None
        self._driver: Driver | None = None
        self._ending = False
        self._coming = False  # the next one: the last has died

    # ---- the scheduler ----

    def renew(self) -> None:
        """A new round: nothing of the earlier ones is there."""
        self._end_strangers()
        self.ground.renew()
        self._log.truncate(0)

    @property
    def died(self) -> set[str]:
        """Before which of the lines that this round is about a process was killed."""
        return died(self.home)

    def start(self, traced: str = "") -> None:
        """Starts it, `traced` if so asked (see traced.py); when it dies before a line, another one follows."""
        self.starts += 1
        self._traced = traced
        if self._nursery is None:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.nursery"], cwd=ROOT, env=self._environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            )  # fmt: skip
            threading.Thread(target=self._follow, args=(self._nursery,), daemon=True).start()
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(f"{traced}\n")
        self._nursery.stdin.flush()
        with self._changed:
            assert self._changed.wait_for(lambda: self._alive is not None, PATIENCE)

    def _follow(self, nursery: subprocess.Popen[str]) -> None:
        assert nursery.stdout is not None
        for line in nursery.stdout:
            word, pid, *status = line.split()
            with self._changed:
                self._alive = int(pid) if word == "began" else None
                self._coming = word == "ended" and not self._ending
                self._changed.notify_all()
            if self._coming:
                if status != [str(-signal.SIGKILL)]:
                    print(f"the scheduler ended by itself with status {status[0]}", file=sys.stderr)
                threading.Thread(target=self.start, args=(self._traced,)).start()

    def interrupt(self, meanwhile: Callable[[], None], how: int = signal.SIGKILL) -> None:
        """As a power cut would end it, or `how`; `meanwhile` happens while nobody is there, and another one follows."""
        self._end(how)
        meanwhile()
        self._ending = False
        self.start(self._traced)

    def stop(self) -> None:
        self._end(signal.SIGTERM)
        self._ending = False

    def _end(self, how: int) -> None:
        """From then on none follows it."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._coming, PATIENCE)
            self._ending = True
            if self._alive is not None:
                os.kill(self._alive, how)
            assert self._changed.wait_for(lambda: self._alive is None, PATIENCE), "it does not end"

    def has_cards(self, description: str) -> None:
        """From the next scheduler on; while none is there."""
        if description != self._environment["GPUSHARE_GPUS"]:
            self._end_helpers()
            shutil.rmtree(self.home / "card", ignore_errors=True)
            self._environment["GPUSHARE_GPUS"] = description

    def close(self) -> None:
        for other in self.others:
            other.close()
        self.stop()
        self._end_strangers()
        self._end_helpers()
        self._log.close()

    def _end_helpers(self) -> None:
        """What knows the cards, and whoever starts schedulers."""
        for process in filter(None, (self._nursery, self._nvml)):
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(PATIENCE)
        if self._driver is not None:
            self._driver.close()
        self._nursery = self._nvml = self._driver = None

    # ---- whom harm can be done to ----

    def containers_processes(self) -> Iterator[tuple[str, int, list[int]]]:
        """Of each living container: its id, its keeper (Docker: its shim), and its own processes."""
        if self.docker is not None:
            with contextlib.suppress(requests.exceptions.RequestException, docker.errors.DockerException):
                yield from self._in_docker()  # or it is away
            return
        for path in (self.home / "processes").glob("*/running.json"):
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                keeper = json.loads(path.read_text())["keeper"]
                if not path.with_name("ended.json").exists():
                    yield path.parent.name, keeper, [each.pid for each in tree.descendants(keeper)]

    def _in_docker(self) -> Iterator[tuple[str, int, list[int]]]:
        for found in self.docker.containers(filters={"label": LABEL}):
            with contextlib.suppress(docker.errors.NotFound):  # it was removed meanwhile
                first = self.docker.inspect_container(found["Id"])["State"]["Pid"]
                if (stat := proc.stat(first)) is not None:
                    programs = [first, *(each.pid for each in tree.descendants(first))]
                    yield found["Labels"][LABEL], stat.parent, programs

    def pids(self, kind: str) -> list[int]:
        """Of the "scheduler"."""
        return [self._alive] if kind == "scheduler" and self._alive is not None else []

    def tasks(self, pid: int) -> dict[str, int]:
        """How many tasks of each kind the scheduler's loop has: see troubled.py."""
        path = self.home / f"tasks.{pid}"
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
        self.until(path.exists, "the scheduler does not tell its tasks")
        lines = path.read_text().splitlines()
        return {name: int(times) for times, _, name in (line.partition(" ") for line in lines)}

    def living(self) -> set[str]:
        """The containers that are alive by the records."""
        return retried(lambda: {str(pk) for pk in Container.objects.live().values_list("pk", flat=True)})

    def left_of(self, container: Container) -> list[int]:
        """Processes that were started in this container, by the socket that they were given."""
        return self._strangers(str(container.pk))

    def _end_strangers(self) -> None:
        for pid in self._strangers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _strangers(self, container: str = "") -> list[int]:
        socket = f"GPUSHARE_SOCKET={self.home}/sockets/{container}".encode()
        return [pid for pid, environment in processes() if socket in environment]

    @contextlib.contextmanager
    def trouble(self, name: str, how: str = "") -> Iterator[None]:
        """See troubled.py."""
        path = self.home / "trouble" / name
        path.parent.mkdir(exist_ok=True)
        path.with_name("new").write_text(how)
        path.with_name("new").rename(path)
        try:
            yield
        finally:
            path.unlink()

    # ---- what people want ----

    def begin(self, kind: str, container: Container | None = None, **arguments: Any) -> Command:
        """Asks the node that has the container, as the web side does."""

        def write() -> Command:
            its = Container.objects.filter(pk=container.pk).values_list("node", flat=True).get() if container else None
            return Command.objects.create(kind=kind, container=container, node_id=its, arguments=arguments)

        command = retried(write)
        hint()
        return command

    def begin_launch(self, name: str, *words: str, **fields: Any) -> Command:
        def write() -> Command:
            owner, _ = User.objects.get_or_create(username=fields.get("owner", "ada"))
            here = Node.objects.filter(name=settings.GPUSHARE_NODE).first()
            asked = {
                "image": self.ground.image,
                "gpu_memory": GIB,
                "node": here,
                "node_asked": here.name if here else "",
            }
            container = Container.objects.create(name=name, command=list(words), **{**asked, **fields, "owner": owner})
            return Command.objects.create(kind="launch", container=container, node=here, issued_by=owner)

        command = retried(write)
        hint()
        return command

    def outcome(self, command: Command) -> Command:
        """The command once it is done."""

        def done() -> Command | None:
            found = Command.objects.select_related("container").get(pk=command.pk)
            return found if found.done_at is not None else None

        return self.until(done, f"{command.kind} {command.container} is never done")

    def do(self, kind: str, container: Container | None = None, **arguments: Any) -> Command:
        return self.outcome(self.begin(kind, container, **arguments))

    # ---- what is so ----

    def until(self, condition: Callable[[], T | None], otherwise: str, within: float = PATIENCE) -> T:
        """The first true value of `condition`. Each scheduler that begins meanwhile has so long. Raises Wrong."""
        deadline, pause, starts = time.monotonic() + within, 0.004, self.starts
        while not (value := retried(condition)):
            if self.starts != starts:
                deadline, starts = time.monotonic() + within, self.starts
            if time.monotonic() > deadline:
                raise Wrong(f"{otherwise} (waited for {within:.0f} s)")
            time.sleep(pause)
            pause = min(1.4 * pause, 0.05)  # what takes long need not be looked at often
        return value

    def get(self, container: Container) -> Container:
        return Container.objects.get(pk=container.pk)

    def until_state(self, container: Container, state: str) -> Container:
        def reached() -> Container | None:
            found = Container.objects.get(pk=container.pk)
            return found if found.state == state else None

        try:
            return self.until(reached, "")
        except Wrong:
            found = Container.objects.get(pk=container.pk)
            raise Wrong(
                f"{found.name} is {found.state} ({found.reason or found.queue_reason}), not {state}: {self.log(found)}"
            ) from None

    def until_says(self, container: Container, words: str) -> None:
        self.until(
            lambda: words in self.log(container), f"{container.name} never says {words!r}: {self.log(container)}"
        )

    def log(self, container: Container) -> str:
        paths = [home / "logs" / f"{container.pk}.log" for home in (self.home, self.home / SECOND)]
        return "".join(path.read_text() for path in paths if path.exists())

    def events(self, container: Container, *kinds: str) -> list[AllocationEvent]:
        found = list(AllocationEvent.objects.filter(container=container).order_by("id"))
        return [event for event in found if not kinds or event.kind in kinds]

    def card(self, order: str = "") -> list[dict[str, Any]]:
        """What NVML says of each GPU: uuid, total, used, and held: {pid: bytes}, after it did as `order` says."""
        if self._nvml is None:
            env = {**os.environ, "GPUSHARE_SIM": str(self._card)}
            self._nvml = subprocess.Popen(
                [sys.executable, "-c", _NVML, str(BUILD)], env=env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        self._nvml.stdin.write(f"0 {order}\n")  # type: ignore[union-attr]
        self._nvml.stdin.flush()  # type: ignore[union-attr]
        gpus: list[dict[str, Any]] = json.loads(self._nvml.stdout.readline())  # type: ignore[union-attr]
        return gpus

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._card)
        return self._driver

    @property
    def _card(self) -> Path:
        (state,) = (path for path in (self.home / "card").iterdir() if path.suffix == "")
        return state


def processes() -> Iterator[tuple[int, bytes]]:
    """Every process that can be looked at: its pid and its environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "environ").read_bytes()
        except OSError:
            continue


def retried(query: Callable[[], T]) -> T:
    """The database may be locked, or away, for a while: that is no fault of what is asked."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return query()
        except (DatabaseError, InterfaceError):
            if time.monotonic() > deadline:
                raise
            connection.close()  # if it was cut off, another one is made
            time.sleep(0.05)


__all__ = ["GIB", "MIB", "Claim", "Gpu", "World", "Wrong", "processes", "retried"]

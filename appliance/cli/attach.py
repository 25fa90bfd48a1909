"""An attached container: its output here, its waits reported, Ctrl-C passed on, its exit code ours; with a console, its
keyboard too, and then Ctrl-C is a key like others.

One loop in the main thread takes what happens from a queue: the output ended, a signal came, a request was answered.
Between two of them it looks at the container. Output is written by a thread of its own, so that a slow terminal and a
slow network never hold up a Ctrl-C.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum, auto
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from appliance.cli.client import Client, Json, Pending
from appliance.cli.console import Console
from appliance.cli.errors import REFUSED, TOO_MANY, Problem
from appliance.cli.output import write
from appliance.cli.screen import Screen
from appliance.cli.text import clock, ordinal, size, span
from appliance.flags import flag

LOOK = 0.5  # seconds between two looks at a container that runs
LAST_LOOK = 0.05  # once its output has ended, its end is near
GLANCE = 5.0  # seconds for its answer: Ctrl-C waits for that
DRAIN = 10.0  # seconds for the rest of the output of a container that has ended
PATIENCE = 60.0  # seconds without an answer until we give up; the container goes on
AT_A_TERMINAL = 600.0  # where a person sits, who can leave by two keys
ASK = 10.0  # seconds between two looks at what it was refused, which is another question
REFUSALS = 20  # events: those for another reason may come first
STANDING = ("suspended", "paused", "swapped")

Say = Callable[[str, str, Json], None]
"""Tells the person: what kind of thing happened, the line, the container (empty before there is one)."""


class What(Enum):
    PENDING = auto()  # the launch takes longer: an image is fetched
    LAUNCHED = auto()
    NOT_LAUNCHED = auto()
    SIGNALLED = auto()
    RESIZED = auto()  # the window of our terminal
    OUTPUT_ENDED = auto()
    LEFT = auto()  # by the keys that leave a terminal
    CUT_OFF = auto()  # the console's connection broke
    STDOUT_CLOSED = auto()
    REFUSED = auto()  # something that we asked for on the way
    OUTPUT_LOST = auto()  # the rest of it cannot be had


class Attachment:
    """Launches one container and follows it to its end.

    `grace` is what Ctrl-C gives it, in seconds, before it is killed.
    """

    def __init__(
        self,
        client: Client,
        launch: Callable[[Pending], Json],
        say: Say,
        *,
        grace: float = 10.0,
        console: Console | None = None,
    ) -> None:
        self.client, self.launch, self.say, self.grace, self.console = client, launch, say, grace, console
        self.container: Json = {}
        self.happened: SimpleQueue[tuple[What, Any]] = SimpleQueue()
        self.progress = ""
        self.output_ended = False
        self.output_lost = False  # some of it could not be read
        self.interrupts = 0
        self.reported: tuple[str, str | None] = ("", None)  # the last wait that was reported: its state and since when
        self.waited_before = 0.0  # seconds that it had been suspended before the wait that was reported
        self.silent_since: float | None = None
        self.asked_at = time.monotonic()  # when it was last looked whether it was refused memory
        self.refusal_shown = False

    @property
    def name(self) -> str:
        return str(self.container["name"])

    def follow(self) -> int:
        """Returns the exit code for our own process."""
        with self._signals(), self.console or nullcontext():
            if not self._launch():
                return 128 + signal.SIGINT
            _beside(self._pass_on if self.console else self._copy_output)
            pause = LAST_LOOK
            while True:
                code = self._take(pause)
                if code is not None:
                    return code
                if self._look():
                    self._drain()
                    return exit_code(self.container) or (REFUSED if self.output_lost else 0)
                pause = LAST_LOOK if self.output_ended else min(LOOK, pause * 2)

    def _launch(self) -> bool:
        """False if a second Ctrl-C came before the launch was answered. The first one calls it off."""
        _beside(self._ask_for_launch)
        asked_to_stop = False
        while True:
            what, detail = self.happened.get()
            if what is What.NOT_LAUNCHED:
                raise detail
            if what is What.SIGNALLED:
                self.interrupts += 1
                if self.interrupts > 1:
                    self._tell("detached", "left before the launch was answered; its state: gpushare ps")
                    return False
                self._tell("stopping", "cancelling the launch; Ctrl-C again leaves at once")
            elif what is What.PENDING:
                self.container = {"id": detail["container"]}
                self._tell_progress(detail["message"])
            elif what is What.LAUNCHED:
                self.container = detail
            if self.interrupts and self.container and not asked_to_stop:
                self._stop(0)
                asked_to_stop = True
            if what is What.LAUNCHED:
                return True

    def _ask_for_launch(self) -> None:
        try:
            launched = self.launch(lambda command: self.happened.put((What.PENDING, command)))
        except Problem as problem:
            self.happened.put((What.NOT_LAUNCHED, problem))
        else:
            self.happened.put((What.LAUNCHED, launched))

    def _tell_progress(self, message: str) -> None:
        if message and message != self.progress:
            self.progress = message
            self._tell("progress", message)

    def _take(self, pause: float) -> int | None:
        """Waits for the next thing to happen; an exit code if it ends the attachment."""
        try:
            what, detail = self.happened.get(timeout=pause)
        except Empty:
            return None
        if what is What.OUTPUT_ENDED:
            self.output_ended = True
        elif what is What.RESIZED and self.console:
            self.console.resize()
        elif what is What.LEFT:
            self._tell("detached", f"left {self.name}; to return: gpushare attach {self.name}")
            return 0
        elif what is What.CUT_OFF:
            raise detail
        elif what is What.STDOUT_CLOSED:
            self._tell("detached", f"output closed; {self.name} keeps running; to end it: gpushare kill {self.name}")
            return 128 + signal.SIGPIPE
        elif what in (What.REFUSED, What.OUTPUT_LOST):
            self.output_lost = self.output_lost or what is What.OUTPUT_LOST
            self._tell("problem", detail.line())
        elif what is What.SIGNALLED:
            return self._interrupted()
        return None

    def _interrupted(self) -> int | None:
        """First Ctrl-C: its stop signal. Second: kill it. Third: leave without waiting; the appliance ends it."""
        self.interrupts += 1
        if self.interrupts == 1:
            self._tell("stopping", f"stopping {self.name}; Ctrl-C again kills it at once")
            self._stop(self.grace)
        elif self.interrupts == 2:
            self._tell("killing", f"killing {self.name}; Ctrl-C again leaves at once")
            self._stop(0)
        else:
            self._tell("detached", f"left {self.name}; its state: gpushare ps")
            return 128 + signal.SIGINT
        return None

    def _look(self) -> bool:
        """Reads the container again; true if it has ended. An appliance that is away is waited for: programs go on."""
        try:
            self.container = self.client.fetch(self.container["id"], timeout=GLANCE)
        except Problem as problem:
            if not problem.away:
                raise
            if problem.status != TOO_MANY:
                self._away(problem)
            return False
        if self.silent_since is not None:
            self.silent_since = None
            self._tell("back", "the appliance answers again")
        self._tell_waits()
        ended = self.container["finished_at"] is not None
        if not self.refusal_shown and (ended or time.monotonic() - self.asked_at > ASK):
            self.asked_at = time.monotonic()
            with suppress(Problem):  # it is no more than a remark
                self._tell_refusal()
        return ended

    def _away(self, problem: Problem) -> None:
        now = time.monotonic()
        if self.silent_since is None:
            self.silent_since = now
            self._tell("away", f"the appliance does not answer; {self.name} keeps running. Trying again")
        elif now - self.silent_since > (AT_A_TERMINAL if self.console and self.console.comes_back else PATIENCE):
            problem.hint = f"{self.name} may still run: gpushare logs -f {self.name}"
            raise problem

    def _tell_waits(self) -> None:
        """One line when a wait begins and one when it ends, however often we look and however soon it ended after."""
        state, waited = self.container["state"], self.container["suspended_seconds"]
        wait = (state, self.container["suspended_since"]) if state in STANDING else ("", None)
        if wait == self.reported:
            return
        if state == "suspended" and self.container["queue_position"] is None:
            return  # it has only just begun to wait: the next look knows its place in the queue too
        before, self.reported = self.reported[0], wait
        if state == "suspended":
            self.waited_before = waited
            self._tell("suspended", suspended_line(self.container, self.client))
        elif state == "paused":
            self._tell("paused", f"{self.name} is paused; to resume it: gpushare resume {self.name}")
        elif state == "swapped":
            self._tell("swapped", f"{self.name} was moved to host memory; it returns when GPU memory is free")
        elif before == "suspended" and state != "killed":
            self._tell("resumed", f"{self.name} continues after {span(waited - self.waited_before)}")
        elif state == "running":
            self._tell("resumed", f"{self.name} continues")

    def _tell_refusal(self) -> None:
        """The first call beyond its quota: many a program says no more than that memory is out."""
        quotas = {gpu["uuid"]: gpu["quota"] for gpu in self.container["gpus"]}
        given = {"container": self.container["id"], "kind": "rejected", "ordering": "at", "page_size": REFUSALS}
        for event in self.client.get("allocations/", **given)["results"]:
            if event["detail"].startswith("over_quota") and event["gpu"] in quotas:
                beyond = f"{size(event['bytes'])} beyond its quota of {size(quotas[event['gpu']])}"
                larger = f"for more: {flag('gpu_memory')}"
                self._tell("refused", f"{self.name} asked for {beyond} and was refused; {larger}")
                self.refusal_shown = True
                return

    def _pass_on(self) -> None:
        """Keys and output, over the console. Its remarks stand where they belong between what the program writes."""
        assert self.console
        try:
            stayed = self.console.pass_on(self.container, lambda line: self._tell("console", line))
        except BrokenPipeError:
            self.happened.put((What.STDOUT_CLOSED, None))
        except Problem as problem:
            if problem.code == "container_ended":  # before we came; the log has it all
                self._copy_output()
                return
            self.happened.put((What.CUT_OFF, problem))
        else:
            self.happened.put((What.OUTPUT_ENDED if stayed else What.LEFT, None))

    def _copy_output(self) -> None:
        """The whole log from its first byte on; after a broken connection, from where it broke."""
        written, screen = 0, Screen()
        while True:
            try:
                with self.client.stream(f"containers/{self.container['id']}/logs/", follow="true") as chunks:
                    skip = written
                    for chunk in chunks:
                        fresh, skip = chunk[skip:], max(0, skip - len(chunk))
                        write(screen.shown(fresh))
                        written += len(fresh)
                    write(screen.end())
            except BrokenPipeError:
                self.happened.put((What.STDOUT_CLOSED, None))
                return
            except Problem as problem:
                if not problem.away:
                    self.happened.put((What.OUTPUT_LOST, problem))
                    break
                time.sleep(LOOK)
                continue
            break
        self.happened.put((What.OUTPUT_ENDED, None))

    def _drain(self) -> None:
        """What the container wrote before its end is still on its way."""
        until = time.monotonic() + DRAIN
        while not self.output_ended and self._take(max(0.0, until - time.monotonic())) is None:
            if time.monotonic() >= until:
                return

    def _stop(self, grace: float) -> None:
        """Beside the loop: an answer takes seconds, and the next Ctrl-C must not wait for it."""
        container = self.container

        def ask() -> None:
            try:
                self.client.act(container, "kill", grace=grace)
            except Problem as problem:
                if problem.status != 409:  # 409: it has ended meanwhile, which is what we wanted
                    self.happened.put((What.REFUSED, problem))

        _beside(ask)

    def _tell(self, what: str, line: str) -> None:
        self.say(what, line, self.container)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def took(number: int, frame: FrameType | None) -> None:
            self.happened.put((What.RESIZED if number == signal.SIGWINCH else What.SIGNALLED, number))

        taken = (signal.SIGINT, signal.SIGTERM, *((signal.SIGWINCH,) if self.console else ()))
        before = {number: signal.signal(number, took) for number in taken}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def suspended_line(container: Json, client: Client) -> str:
    """Says that it waits, since when, where in the queue, and why."""
    since, place = clock(container["suspended_since"], client.now()), ordinal(container["queue_position"])
    return f"{container['name']} is suspended since {since}, {place} in the queue. {container['queue_reason']}"


def exit_code(container: Json) -> int:
    """The container's exit code, which is 128 + N if signal N ended it; 125 if it never started."""
    code = container["exit_code"]
    if code is None:
        return 128 + signal.SIGKILL if container["state"] == "killed" else REFUSED
    return int(code)


def _beside(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()

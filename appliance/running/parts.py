"""Processes that one parent starts, starts again when they die, and ends.

The parent forks and does nothing else: it has no thread, no event loop and no connection, since none of these outlives
a fork. What it has imported is there once for all of them, and a part that died is back in a moment. They write where
the parent writes; nothing goes through pipes that somebody would have to empty. If the parent dies, the kernel ends the
parts.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

AGAIN = 1.0  # seconds from one start of a part to the next at the least
STOPS_WITHIN = 20.0  # seconds; whoever has not ended by then is killed
SENTENCE = 4096  # bytes
PR_SET_PDEATHSIG = 1

STARTED = signal.SIGUSR1
_ENDS = {signal.SIGINT, signal.SIGTERM}
_HEARD = {*_ENDS, signal.SIGCHLD, STARTED}

_parent = -1  # in a part: its parent's pidfd. When that has died, its number is another's, or whoever adopts orphans


class CannotStart(Exception):
    """With a sentence for whoever started it. Raised in a part, and then in the parent."""


class Stopped(Exception):
    """A signal asked for the end."""


@dataclass(eq=False)
class Part:
    """`run` is called in the part's process. It ends on SIGTERM. `become` gives up what the part shall not have."""

    name: str
    run: Callable[[], None]
    become: Callable[[], None] = lambda: None
    pid: int = 0  # 0: it does not run
    due: float = field(default_factory=time.monotonic)  # when it may be started
    ended: int | None = None  # how it ended last: its exit code, or minus the signal
    why: str = ""  # what it said when it could not start
    _said: int = -1  # where its sentence will come out

    def start(self) -> None:
        """Raises OSError if the host has no process or descriptor left for it."""
        self.due = time.monotonic() + AGAIN
        parent = os.getpid()
        self._said, says = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self._said)
            os.close(says)
            raise
        if self.pid == 0:
            os.close(self._said)
            _live(self, says, parent)
        os.close(says)

    def note_end(self, status: int) -> None:
        self.pid, self.ended = 0, os.waitstatus_to_exitcode(status)
        self.why = os.read(self._said, SENTENCE).decode()
        os.close(self._said)

    def how(self) -> str:
        if self.why:
            return f"cannot start: {self.why}"
        code = self.ended or 0
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _live(part: Part, says: int, parent: int) -> None:
    """The life of a part, in its own process. Never returns."""
    global _parent
    code = 1
    try:
        Path("/proc/self/comm").write_text(part.name)
        part.become()  # before the next line: the kernel forgets it when a process becomes somebody else
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it died before the line above could tell the kernel
        _parent = os.pidfd_open(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        part.run()
        code = 0
    except CannotStart as error:
        os.write(says, str(error).encode()[:SENTENCE])
    except SystemExit:
        pass  # it has said what there is to say
    except BaseException:
        log.exception("a part of the appliance failed")
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


class Parts:
    """`with Parts(...) as parts:` they run. Meanwhile the signals of the parent's thread are this object's."""

    def __init__(self, *parts: Part) -> None:
        self._kept = list(parts)

    def __enter__(self) -> "Parts":
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        for part in self._kept:
            part.start()
        return self

    def wait_for_start(self) -> None:
        """Until one of them has said `tell_started()`. Raises CannotStart if one ended before, and Stopped."""
        while self._next(None) != STARTED:
            for part in self._kept:
                if part.ended is not None:
                    raise CannotStart(part.why or f"The {part.name} {part.how()}.")

    def wait(self) -> None:
        """Keeps all of them running until a signal asks for the end."""
        try:
            while True:
                self._keep()
        except Stopped:
            pass

    def run(self, name: str, work: Callable[[], None]) -> bool:
        """Does this in a process of its own, keeping the others running. Whether it went well. Raises Stopped."""
        part = Part(name, work)
        part.start()
        self._kept.append(part)
        try:
            while part.ended is None:
                self._keep(once=part)
        finally:
            if part.ended is not None:
                self._kept.remove(part)
        return part.ended == 0

    def __exit__(self, *_: object) -> None:
        """Ends all of them: SIGTERM once, and whoever takes too long is killed."""
        for part in self._kept:
            _send(part, signal.SIGTERM)
        deadline = time.monotonic() + STOPS_WITHIN
        while any(part.pid for part in self._kept):
            if time.monotonic() > deadline:
                log.error("the %s did not end within %.0f s and is killed", _names(self._kept), STOPS_WITHIN)
                for part in self._kept:
                    _send(part, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, 0.5)
            self._reap()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)

    def _keep(self, once: Part | None = None) -> None:
        """One turn: waits for something to happen; starts again what has ended, but for `once`."""
        ended = [part for part in self._kept if part.pid == 0 and part is not once]
        now = time.monotonic()
        for part in ended:
            if part.due <= now:
                log.error("the %s %s; it starts again", part.name, part.how())
                try:
                    part.start()
                except OSError as error:
                    log.error("the %s cannot be started just now: %s", part.name, error)
        waiting = [part.due - now for part in ended if part.pid == 0]
        self._next(min(waiting, default=None))

    def _next(self, patience: float | None) -> int:
        """The next signal, or 0 after `patience` seconds. Raises Stopped."""
        if patience is None:
            number = int(signal.sigwait(_HEARD))
        else:
            found = signal.sigtimedwait(_HEARD, max(0.0, patience))
            number = found.si_signo if found else 0
        if number in _ENDS:
            raise Stopped
        self._reap()
        return number

    def _reap(self) -> None:
        """Notes who has ended. One signal may stand for several of them."""
        for part in self._kept:
            if part.pid:
                pid, status = os.waitpid(part.pid, os.WNOHANG)
                if pid:
                    part.note_end(status)


def tell_started() -> None:
    """In a part: says to the parent that it works."""
    with contextlib.suppress(ProcessLookupError):  # the kernel tells this part next
        signal.pidfd_send_signal(_parent, STARTED)


def _send(part: Part, number: int) -> None:
    if part.pid:
        os.kill(part.pid, number)


def _names(parts: Sequence[Part]) -> str:
    return " and the ".join(part.name for part in parts if part.pid)

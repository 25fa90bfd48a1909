"""A process as a coroutine: what the shim and the driver do for a program, on a real socket and a real lease page."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from shim.binding import FRAME_SIZE, WIRE_VERSION, Code, Frame, LeasePage, Purpose, Type, pack, unpack
from shim.binding.native import lib
from tests.support.inprocess.cards import CONTEXT, MIB, Cards
from tests.support.inprocess.driver import Driver
from tests.support.inprocess.kernel import Kernel

BLOCK = 2 * MIB  # what a card gives of 1 MiB and more
FREE_DELAY = 0.003  # seconds from a process's death to the return of its memory, about what a real card takes
CELL = 0.006  # seconds of a processor: the least that a call to compute takes
PAUSE = 0.1  # seconds between two tries to connect
ASK_AGAIN, TELL_EVERY = 0.01, 100  # seconds, tries

Program = Callable[..., Coroutine[Any, Any, int | None]]  # of a `Process` and the words after the program's name


class OutOfMemory(Exception):
    """CUDA's. `code`: why, by the scheduler; None: the card had no room."""

    def __init__(self, code: Code | None) -> None:
        super().__init__("out of memory" if code is None else code.name)
        self.code = code


class Refused(Exception):
    """The scheduler refused the HELLO."""


@dataclass(frozen=True, slots=True)
class Machine:
    kernel: Kernel
    driver: Driver
    cards: Cards


@dataclass(eq=False)
class Process:
    """`gpus`: uuids, in the order of the page's slots. `used`: bytes by slot, contexts too. `say` writes its output."""

    machine: Machine
    gpus: list[str]
    environment: Mapping[str, str]
    say: Callable[[str], None]
    forked: Callable[[Process, Program, tuple[str, ...]], None]
    page: LeasePage | None = None
    socket: socket.socket | None = None
    used: dict[int, int] = field(default_factory=dict)
    terminated: asyncio.Event = field(default_factory=asyncio.Event)  # SIGTERM has come
    deaf: bool = False  # which does not end it
    asked: asyncio.Queue[str] = field(default_factory=asyncio.Queue)  # by a test, for programs that do what it says

    def __post_init__(self) -> None:
        self.pid = self.machine.kernel.begin()
        self._serials = itertools.count(1)
        self._open: dict[int, tuple[Frame, asyncio.Future[Frame]]] = {}
        self._contexts: set[int] = set()
        self._connecting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._awake = asyncio.Event()
        self._awake.set()

    # ---- what a program calls ----

    async def alloc(self, size: int, gpu: int = 0) -> None:
        """Returns once it has the bytes, however long it waits. Raises OutOfMemory."""
        await self._context(gpu)
        size = -size // BLOCK * -BLOCK if size >= MIB else size
        await self._charge(gpu, size, Purpose.MEMORY)
        await self.machine.driver.runs(self.pid)
        if not self.machine.cards.take(self.on(gpu), self.pid, size):
            self._release(gpu, size)
            self._send(Frame(Type.PHYSICAL, gpu, 0, 0, size))
            raise OutOfMemory(None)
        self.used[gpu] = self.used.get(gpu, 0) + size

    async def free(self, size: int, gpu: int = 0) -> None:
        size = -size // BLOCK * -BLOCK if size >= MIB else size
        await self.machine.driver.runs(self.pid)
        self.machine.cards.give(self.on(gpu), self.pid, size)
        self.used[gpu] -= size
        self._release(gpu, size)

    async def compute(self, seconds: float = inf, gpu: int = 0) -> None:
        """Returns once it has had so many seconds of a card of its own."""
        await self._context(gpu)
        self.machine.kernel.works(self.pid, CELL)
        await self.machine.cards.computing[self.on(gpu)].compute(self.pid, seconds)

    def on(self, gpu: int) -> str:
        """The card that it has now: it may have been restored on another."""
        began = self.gpus[gpu]
        return self.machine.driver.on.get(self.pid, {}).get(began, began)

    async def ask(self) -> None:
        """Whether its card is done: nobody looks while the memory is being moved (shim/hooks/hooks_asking.c)."""
        page, tries = await self.connect() if self.page is None else self.page, itertools.count(1)
        while not lib.lease_enter(page._raw):
            await self.machine.driver.runs(self.pid)
            if next(tries) % TELL_EVERY == 0:
                await self.connect()  # a scheduler that had not seen it knows of it then
            await asyncio.sleep(ASK_AGAIN)
        try:
            await self.machine.driver.runs(self.pid)
        finally:
            lib.lease_leave(page._raw)

    def takes_past_the_shim(self, size: int, gpu: int = 0) -> None:
        """Memory and a context that nobody was asked for."""
        assert self.machine.cards.take(self.on(gpu), self.pid, CONTEXT + size)
        self.machine.driver.begin(self.pid)

    async def memory(self, gpu: int = 0) -> tuple[int, int]:
        """Free and total, as cuMemGetInfo tells: its quota is the card."""
        await self._context(gpu)
        assert self.page is not None
        slot = self.page[gpu]
        return slot.claim, slot.quota

    def fork(self, program: Program, *words: str) -> Process:
        """One more process of the container, which has nothing of this one's memory."""
        child = Process(self.machine, self.gpus, self.environment, self.say, self.forked)
        self.forked(child, program, words)
        return child

    async def connect(self) -> LeasePage:
        """Says HELLO, until it has a page. Raises Refused."""
        async with self._connecting:
            while self.socket is None:
                try:
                    await self._hello()
                except OSError:
                    await asyncio.sleep(PAUSE)
        assert self.page is not None
        return self.page

    def hang_up(self) -> None:
        """Closes its connection; it connects again when it has to ask."""
        if self._reading is not None:
            self._reading.cancel()
        if self.socket is not None:
            self.socket.close()
        self.socket = self._reading = None

    # ---- what others do to it ----

    def freeze(self, frozen: bool = True) -> None:
        self.machine.kernel.freeze(self.pid, frozen)
        (self._awake.clear if frozen else self._awake.set)()
        self.machine.driver.changed()

    def end(self) -> None:
        """However it came."""
        self.hang_up()
        self.machine.kernel.end(self.pid)
        if self.page is not None:
            self.page.close()
            self.page = None
        asyncio.get_running_loop().call_later(FREE_DELAY, self.machine.cards.end, self.pid)
        self.machine.driver.end(self.pid)

    def run(self, work: Coroutine[Any, Any, int | None]) -> Coroutine[Any, Any, int | None]:
        """The same, which goes no step on while this process is frozen."""

        async def gated() -> int | None:
            return await _Gated(work, self._awake)

        return gated()

    # ---- the shim ----

    async def _context(self, gpu: int) -> None:
        if gpu in self._contexts:
            return
        page = await self.connect()
        size = page[gpu].context
        await self._charge(gpu, size, Purpose.CONTEXT)
        lib.set_overhead(page[gpu]._raw, page[gpu].overhead + size)
        if not self.machine.cards.take(self.on(gpu), self.pid, CONTEXT):
            raise OutOfMemory(None)
        self._contexts.add(gpu)
        self.used[gpu] = CONTEXT
        self.machine.driver.begin(self.pid)

    async def _charge(self, gpu: int, size: int, purpose: Purpose) -> None:
        page = await self.connect() if self.page is None else self.page
        if not page[gpu].reserve(size):
            await self.need(size, gpu, purpose)

    async def need(self, size: int, gpu: int = 0, purpose: Purpose = Purpose.MEMORY) -> None:
        """Asks for bytes that its lease does not have. Raises OutOfMemory."""
        serial = next(self._serials)
        answer = asyncio.get_running_loop().create_future()
        need = Frame(Type.NEED, gpu, serial, purpose, size)
        self._open[serial] = need, answer
        try:
            if self.socket is None:
                await self.connect()  # asks all that is open
            else:
                self._send(need)
            got: Frame = await answer
        finally:
            self._open.pop(serial, None)
        if got.type == Type.REJECTED:
            raise OutOfMemory(Code(got.code or Code.SHORTAGE))

    def _release(self, gpu: int, size: int) -> None:
        assert self.page is not None
        if self.page[gpu].release(size):
            self._send(Frame(Type.RELEASED, gpu))

    def _send(self, frame: Frame) -> None:
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.send(pack(frame), socket.MSG_NOSIGNAL)

    async def _hello(self) -> None:
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(self.machine.kernel.address(self.pid))
            folder = os.open(Path(self.environment["GPUSHARE_SOCKET"]).parent, os.O_PATH)
            try:
                await loop.sock_connect(sock, f"/proc/self/fd/{folder}/gpushare.sock")
            finally:
                os.close(folder)
            await loop.sock_sendall(sock, pack(Frame(Type.HELLO, code=WIRE_VERSION)))
            welcome, page = await self._receive(sock)
        except BaseException:
            sock.close()
            raise
        if welcome is None or welcome.type != Type.WELCOME:
            sock.close()
            if welcome is not None:
                raise Refused(Code(welcome.code).name)
            raise ConnectionResetError
        assert page is not None
        if self.page is None:
            self.page = LeasePage.adopt(page)
        else:
            os.close(page)  # it is the one that it has
        self.socket = sock
        for need, _ in self._open.values():
            self._send(need)
        self._reading = asyncio.create_task(self._read(sock), name=f"process {self.pid}")

    async def _receive(self, sock: socket.socket) -> tuple[Frame | None, int | None]:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(sock, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(sock)
        await self._awake.wait()
        try:
            data, files, _, _ = socket.recv_fds(sock, FRAME_SIZE, 1)
        except ConnectionResetError:
            data, files = b"", []
        return unpack(data) if data else None, files[0] if files else None

    async def _read(self, sock: socket.socket) -> None:
        while True:
            frame, _ = await self._receive(sock)
            if frame is None:
                break
            if frame.serial in self._open:
                need, answer = self._open[frame.serial]
                if frame.type == Type.GRANTED and self.page is not None:
                    self.page[need.slot].accept(frame.bytes)
                if not answer.done():
                    answer.set_result(frame)
        sock.close()
        self.socket = self._reading = None
        if any(not answer.done() for _, answer in self._open.values()):
            await self.connect()


class _Gated:
    def __init__(self, work: Coroutine[Any, Any, int | None], awake: asyncio.Event) -> None:
        self._work, self._awake = work, awake

    def __await__(self) -> Generator[Any, Any, int | None]:
        steps, thrown = self._work.__await__(), None
        while True:
            try:
                waited = steps.throw(thrown) if thrown else steps.send(None)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            thrown = None
            try:
                yield waited
            except BaseException as error:
                thrown = error
            while thrown is None and not self._awake.is_set():
                yield from self._awake.wait().__await__()

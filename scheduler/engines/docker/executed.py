"""One more program in a Docker container: Docker's "exec".

Docker does not end such a program when whoever started it hangs up, or dies. So each is noted in a folder before it
is started, by Docker's name for it, and is ended by its host pid: when its keyboard goes, or when the next scheduler
starts and finds the note.
"""

import asyncio
import json
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import docker.errors

from scheduler import clock
from scheduler.engines.base import HANGS_UP, EngineError, Exec
from scheduler.engines.docker.attach import Attached, upgraded
from scheduler.engines.docker.client import Client
from scheduler.engines.process import tree

BEGINS_WITHIN = 10.0  # seconds from Docker's answer to a process, on a loaded host
LOOK = 0.05  # seconds
TERMINAL = "xterm-256color"
# Docker holds back what may be the beginning of these keys until the next one. JSON cannot say the byte that nobody
# types (attach.py); a mark that is set with Ctrl-@ is as good if it is set just before the next key.
HARDLY_TYPED = ",".join(["ctrl-@"] * 64)


class Found(NamedTuple):
    """What Docker knows of one: its host pid while it runs, else 0; its exit code, if it has one."""

    pid: int
    code: int | None
    begun: bool


class Execs:
    """Those of this engine. `folder` is where they are noted."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client, self._folder = client, folder

    def end_what_was_left(self) -> None:
        """Blocking. What an earlier scheduler had started and could not end. Raises APIError and others."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for note in list(self._folder.iterdir()):
            self.end(note.name)

    def start(self, engine_id: str, asked: Exec) -> "Executed":
        """Blocking. Raises EngineError, APIError, OSError."""
        made = self._client.api.exec_create(
            engine_id,
            list(asked.command),
            stdin=asked.interactive,
            tty=asked.tty,
            environment=[f"TERM={TERMINAL}"] if asked.tty else None,
            detach_keys=HARDLY_TYPED,
        )
        exec_id = str(made["Id"])
        if not asked.streams:  # an ssh session's goes on, as far as it reads and writes nothing
            (self._folder / exec_id).touch()
        try:
            sock = upgraded(
                self._client, f"exec/{exec_id}/start", json.dumps({"Detach": False, "Tty": asked.tty}).encode()
            )
        except BaseException:
            self.end(exec_id, alone=asked.streams)
            raise
        return Executed(self._client, self, exec_id, sock, asked)

    def end(self, exec_id: str, *, alone: bool = False) -> int | None:
        """Blocking. Its exit code, if it has ended by itself; else it ends now, with its session, which may take it
        HANGS_UP seconds, or `alone`."""
        found = self.look(exec_id)
        if found.pid and alone:
            tree.hang_up_alone(found.pid)
        elif found.pid:
            tree.hang_up(found.pid, HANGS_UP)
        (self._folder / exec_id).unlink(missing_ok=True)
        return found.code

    def look(self, exec_id: str) -> Found:
        """Blocking."""
        try:
            state = self._client.look.exec_inspect(exec_id)
        except docker.errors.NotFound:  # with its container
            return Found(0, None, begun=True)
        pid = state["Pid"] if state["Running"] else 0
        return Found(pid, None if pid else state["ExitCode"], begun=bool(pid) or state["ExitCode"] is not None)


class Executed(Attached):
    """What `Engine.exec` gives."""

    def __init__(self, client: Client, execs: Execs, exec_id: str, sock: socket.socket, asked: Exec) -> None:
        super().__init__(client, exec_id, sock, interactive=asked.interactive, tty=asked.tty)
        self._execs, self._asked = execs, asked
        self._code: int | None = None
        self._ended = False

    async def open(self) -> "Executed":
        try:
            if self._asked.streams:
                return self
            await super().open()
            await self.resize(self._asked.rows, self._asked.columns)
        except BaseException:  # nobody else has it in hand
            await self.close()
            raise
        return self

    async def resize(self, rows: int, columns: int) -> None:
        """Docker refuses it, in several words, until the program runs and once it has ended."""
        deadline = clock.monotonic() + BEGINS_WITHIN
        while self._tty and (await self._begun()).pid:
            resize = self._client.api.exec_resize
            try:
                await self._client.unless_gone(resize, self._engine_id, rows, columns, inside=True)
                return
            except EngineError:
                if clock.monotonic() >= deadline:
                    raise
                await asyncio.sleep(LOOK)

    async def exit_code(self) -> int | None:
        pause = LOOK
        while self._asked.streams and (await self._begun()).pid:  # it may have closed its output before its end
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
        await self._end()
        return self._code

    async def close(self) -> None:
        try:
            await super().close()
        finally:  # whoever closes it may be cancelled meanwhile
            await asyncio.shield(self._end())

    async def _end(self) -> None:
        if not self._ended:
            self._ended = True
            with suppress(EngineError):  # Docker is away: its note stays
                found = await self._begun()
                if found.begun:  # of one that Docker never begins, the note stays
                    call = self._client.call_patiently if found.pid else self._client.call_inside
                    end = partial(self._execs.end, alone=self._asked.streams)
                    self._code = await call(end, self._engine_id)

    async def _begun(self) -> Found:
        """Docker answers a start before there is a process: what is so once there is, or was, one."""
        deadline = clock.monotonic() + BEGINS_WITHIN
        while not (found := await self._client.call_inside(self._execs.look, self._engine_id)).begun:
            if clock.monotonic() >= deadline:
                break
            await asyncio.sleep(LOOK)
        return found

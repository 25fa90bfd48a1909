"""Hints from process to process of one host, without a server: a Channels layer over UNIX datagrams.

Each event loop that uses the layer has a socket in one folder, and every message goes to every socket there: a loop
that has the group, or whose channel it is, keeps it; the others throw it away. There are as many sockets as processes,
two or three, which makes that cheaper than any book about who wants what.

A message is only a hint to look at the database again, and this is all that the layer promises:

- It is sent at most once and nobody waits for it: a socket that is full, or that is not there yet, misses it.
- What nobody has taken yet is kept, one message a channel, the last; so a flood is one hint.
- A socket whose process has died is taken away by the next who sends.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import stat
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

from channels.layers import BaseChannelLayer  # type: ignore[import-untyped]

BIGGEST = 64 << 10  # bytes of a datagram
AT_ONCE = 32  # datagrams that are read before the loop may do something else
UNTAKEN = 256  # channels of which a message is kept

Message = dict[str, Any]


class Ear:
    """What one event loop hears. All of it runs in that loop."""

    def __init__(self, folder: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.groups: dict[str, set[str]] = {}
        self._untaken: OrderedDict[str, Message] = OrderedDict()
        self._listeners: dict[str, set[asyncio.Future[None]]] = {}
        path = f"/proc/self/fd/{folder}/{os.getpid()}-{secrets.token_hex(4)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.bind(path)
        _open_to_group(path)
        self.close = weakref.finalize(self, _end, self._socket, path)
        self.loop.add_reader(self._socket, self._readable)

    async def receive(self, channel: str) -> Message:
        while channel not in self._untaken:
            heard = self.loop.create_future()
            listeners = self._listeners.setdefault(channel, set())
            listeners.add(heard)
            try:
                await heard
            finally:
                listeners.discard(heard)
                if not listeners:
                    self._listeners.pop(channel, None)
        return self._untaken.pop(channel)

    def _readable(self) -> None:
        for _ in range(AT_ONCE):
            try:
                data = self._socket.recv(BIGGEST)
            except BlockingIOError:
                return
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # not one of ours
                kind, name, message = json.loads(data)
                for channel in [name] if kind == "channel" else self.groups.get(name, ()):
                    self._keep(str(channel), dict(message))

    def _keep(self, channel: str, message: Message) -> None:
        self._untaken[channel] = message
        self._untaken.move_to_end(channel)
        if len(self._untaken) > UNTAKEN:
            self._untaken.popitem(last=False)
        for heard in self._listeners.get(channel, ()):
            if not heard.done():
                heard.set_result(None)


def _open_to_group(path: str) -> None:
    """The socket that was just bound there. The group may put something else in its place: then nothing is changed.

    A hint that does not arrive costs time only; a link of the group's to a file of root's would open that file to it.
    """
    with contextlib.suppress(OSError):
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            now = os.fstat(found)
            if stat.S_ISSOCK(now.st_mode) and now.st_uid == os.geteuid() and now.st_nlink == 1:
                os.chmod(f"/proc/self/fd/{found}", 0o660)  # what was looked at, whatever has its name by now
        finally:
            os.close(found)


def _open(folder: Path) -> int:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o2770)  # for a web service of another user, who is of its group
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _end(listener: socket.socket, path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
    listener.close()


class Datagrams(BaseChannelLayer):  # type: ignore[misc]
    """`folder` is where the sockets lie; nobody but our group may enter it."""

    extensions = ["groups"]

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._path = Path(folder)
        self._folder = -1  # opened when it is first needed, so that settings alone make nothing
        self._opening = threading.Lock()
        self._ears: dict[asyncio.AbstractEventLoop, Ear] = {}

    async def send(self, channel: str, message: Message) -> None:
        self._ear()  # before the answer can come
        self.tell(channel, message)

    def tell(self, channel: str, message: Message) -> None:
        """The same from any thread, at once: to go through an event loop is two changes of threads."""
        self.require_valid_channel_name(channel)
        self._tell("channel", channel, message)

    async def receive(self, channel: str) -> Message:
        self.require_valid_channel_name(channel)
        return await self._ear().receive(channel)

    async def new_channel(self, prefix: str = "specific.") -> str:
        return f"{prefix}{os.getpid()}!{secrets.token_hex(8)}"

    async def group_add(self, group: str, channel: str) -> None:
        self.require_valid_group_name(group)
        self._ear().groups.setdefault(group, set()).add(channel)

    async def group_discard(self, group: str, channel: str) -> None:
        self._ear().groups.get(group, set()).discard(channel)

    async def group_send(self, group: str, message: Message) -> None:
        self.require_valid_group_name(group)
        self._ear()
        self._tell("group", group, message)

    def _tell(self, *words: Any) -> None:
        """Raises OSError only if there is no folder to send to."""
        folder, data = self._opened(), json.dumps(words).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as out:
            for name in os.listdir(folder):
                path = f"/proc/self/fd/{folder}/{name}"
                try:
                    out.sendto(data, path)
                except ConnectionRefusedError:  # its process has died
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                except OSError:  # full, or just gone
                    continue

    def _ear(self) -> Ear:
        """That of the running loop, made when it first says or wants to hear something."""
        loop = asyncio.get_running_loop()
        if loop not in self._ears:
            for ended in [other for other in self._ears if other.is_closed()]:
                self._ears.pop(ended).close()
            self._ears[loop] = Ear(self._opened())
        return self._ears[loop]

    def _opened(self) -> int:
        with self._opening:
            if self._folder < 0:
                self._folder = _open(self._path)
                weakref.finalize(self, os.close, self._folder)
        return self._folder

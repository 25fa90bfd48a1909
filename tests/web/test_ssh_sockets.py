"""What the door does with a connection into a container, to a port or by a program to a UNIX socket, whose channel is
not there yet, or never will be."""

import asyncio
import socket
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import asyncssh
import pytest

from web.door import server, sockets


class Connecting:
    """A program that is asked to connect. `says`: what it writes before it ends; None: it goes on for ever."""

    def __init__(self, says: bytes | None) -> None:
        self.says, self.began, self.over = says, asyncio.Event(), asyncio.Event()

    async def pump(self, show):
        self.began.set()
        if self.says is None:
            await asyncio.Event().wait()
        await show(False, self.says)

    async def write(self, data):
        pass

    def end_input(self):
        pass

    async def close(self):
        pass


def asked(monkeypatch, program):
    async def start(container, words):
        return program

    monkeypatch.setattr(sockets, "start", start)
    place = SimpleNamespace(free=program.over.set)
    monkeypatch.setattr(sockets, "places", SimpleNamespace(require=lambda *_: place))
    return sockets.Socket(SimpleNamespace(container=None, user=SimpleNamespace(pk=1)))


async def test_who_hangs_up_before_the_channel_is_there_closes_it_all_the_same(monkeypatch):
    program, channel = Connecting(b"\0"), Mock()
    found = asked(monkeypatch, program)
    await found.reach("/run/app.sock")
    (task,) = found._tasks
    await program.over.wait()
    found.connection_made(channel)
    found.session_started()
    await task
    channel.close.assert_called_once_with()


async def test_one_that_is_called_off_has_no_channel_to_close(monkeypatch):
    program = Connecting(None)
    found = asked(monkeypatch, program)
    reaching = asyncio.create_task(found.reach("/run/app.sock"))
    await program.began.wait()
    (task,) = found._tasks
    reaching.cancel()
    await asyncio.wait([reaching, task])
    assert reaching.cancelled()
    assert task.cancelled()


@pytest.mark.parametrize("what", ["port", "socket"])
async def test_whose_connection_ends_while_it_is_noted_leaves_nothing_open(monkeypatch, what):
    near, far = socket.socketpair()
    program, noting, noted = Connecting(b"\0"), threading.Event(), threading.Event()
    made = asked(monkeypatch, program)

    async def reached(container, port):
        return near, port

    def record(action, **detail):
        noting.set()
        noted.wait()

    visit = SimpleNamespace(user=SimpleNamespace(pk=1), container=SimpleNamespace(pk=1, name="lab"), record=record)
    monkeypatch.setattr(server, "reached", reached)
    monkeypatch.setattr(server, "noteworthy", lambda _: True)
    monkeypatch.setattr(server, "Socket", lambda _: made)
    guest = server.Guest()
    guest._visit = visit
    opens = guest.connection_requested("lab", 80, "", 0) if what == "port" else guest.unix_connection_requested("/a")
    opening = asyncio.create_task(opens)
    await asyncio.to_thread(noting.wait)
    guest.connection_lost(None)
    noted.set()
    with pytest.raises(asyncssh.ChannelOpenError):
        await opening
    if what == "port":
        assert await asyncio.to_thread(far.recv, 1) == b""
    else:
        await program.over.wait()
    near.close()
    far.close()

"""What another host's scheduler says over the relay when it is none any more: it costs its own sessions alone."""

import asyncio
import socket

import pytest
from channels.db import database_sync_to_async

from tests.support.eventually import eventually
from tests.support.machine import make_container, make_node
from web.console import relayed
from web.console.frames import BadFrame, FrameKind, Line, problem_of
from web.models import Container


@pytest.mark.parametrize("status", ["Infinity", "-Infinity", "NaN", "1e999", "[]", "null", '"x"', "200", "9" * 5000])
def test_a_refusal_of_no_status_is_no_refusal(status):
    with pytest.raises(BadFrame):
        problem_of(f'{{"status": {status}, "error": {{"code": "x", "message": "y"}}}}'.encode())


@pytest.mark.django_db(transaction=True)
async def test_a_host_that_hangs_up_again_and_again_is_asked_once_a_second(monkeypatch, ada):
    """Each time costs a look at the database, and a stream."""
    asked, answering = [], []

    async def reach(node, kind):
        asked.append(asyncio.get_running_loop().time())
        near, far = socket.socketpair()
        answering.append(asyncio.create_task(open_and_hang_up(far)))
        return near

    async def open_and_hang_up(far):
        line = Line(*await asyncio.open_unix_connection(sock=far))
        await line.read()
        await line.send(FrameKind.OPEN)
        await line.close()

    container = await made(ada)
    monkeypatch.setattr(relayed, "reach", reach)
    near, far = socket.socketpair()
    far.close()
    never = asyncio.get_running_loop().create_future()
    far_output = relayed._Far(container, never, None, follow=True).read(near)
    reading = asyncio.ensure_future(anext(far_output))
    await eventually(lambda: len(asked) == 3)
    reading.cancel()
    await asyncio.gather(*answering, reading, return_exceptions=True)
    assert asked[2] - asked[0] > 1.9 * relayed.AGAIN


async def made(owner) -> Container:
    def make():
        make_node()
        return make_container(owner, node=make_node(name="far"))

    return await database_sync_to_async(make)()

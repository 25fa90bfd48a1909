"""The web side's end of nodes' links: the WebSocket /ws/nodes/NAME/, by which each node is reached.

For each kind of stream there is a UNIX socket in GPUSHARE_HOME/nodes; a newer link of a node puts its own in the place
of an older one's, which may be half dead. So no process has to know which one holds a node.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import asyncssh
from asyncssh.forward import SSHLocalPathForwarder
from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings

from web.audit import seals
from web.errors import Problem, forbidden
from web.models import Node
from web.people import visitor
from web.relay.carrying import CHUNK, SSH, WINDOW, Held, key_of_web, until_one_ends
from web.relay.reaching import FOLDER, Kind, place_of

log = logging.getLogger(__name__)


class Caller(Held, SSHLocalPathForwarder):
    """Whoever has called one of the sockets."""


async def link(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
    """An ASGI application."""
    await receive()  # the handshake
    node = await database_sync_to_async(_known)(scope["url_route"]["kwargs"]["name"])
    if node is None:
        await send({"type": "websocket.close"})  # before it is accepted: the server answers with 403
        return
    await send({"type": "websocket.accept"})
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=near, limit=CHUNK)
    try:
        await until_one_ends(_take(receive, writer), _give(reader, send), _hold(node, far))
    except (Problem, OSError, ValueError, asyncssh.Error) as error:
        log.info("the link of %s has ended: %s", node.name, error or type(error).__name__)
    finally:
        writer.close()
        far.close()
        with suppress(OSError):  # it has hung up
            await send({"type": "websocket.close"})


def _known(name: str) -> Node | None:
    """Who may dial. Sockets of those who may no more are cleared."""
    found = list((settings.GPUSHARE_HOME / FOLDER).glob("*.*"))
    listed = {str(pk) for pk in Node.objects.listed().values_list("pk", flat=True)}
    for path in found:
        if path.name.partition(".")[0] not in listed:  # removed meanwhile; or the web side was killed before
            path.unlink(missing_ok=True)
    return Node.objects.listed().filter(name=name).exclude(link_key="").first()


def _require(node: Node) -> None:
    """That it is a node, and its scheduler the same. Raises Problem."""
    if not Node.objects.listed().filter(pk=node.pk, link_key=node.link_key).exists():
        raise forbidden("It is no node any more, or its scheduler is another one.")


async def _take(receive: Any, writer: asyncio.StreamWriter) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        writer.write(message.get("bytes") or b"")
        await writer.drain()


async def _give(reader: asyncio.StreamReader, send: Any) -> None:
    while data := await reader.read(CHUNK):
        await send({"type": "websocket.send", "bytes": data})


async def _hold(node: Node, connection: socket.socket) -> None:
    """Until either side ends it, or it is no node any more. Raises Problem, OSError, ValueError, asyncssh.Error."""
    async with asyncssh.run_client(connection, **options(node)) as ssh:
        with ExitStack() as listening:
            for kind in Kind:
                server = await _bound(ssh, node, kind)
                listening.callback(server.close)
                await server.start_serving()
            log.info("the node %s is linked", node.name)
            await until_one_ends(visitor.watch(_require, node), ssh.wait_closed())


def options(node: Node) -> dict[str, Any]:
    """For asyncssh, to a node. Raises ValueError and asyncssh.Error for a key of it that is none."""
    keys = [key_of_web(seals.key_of(node.name, key)) for key in seals.audit_keys()]
    return {
        **SSH, "host": node.name, "username": "web", "client_keys": keys, "agent_path": None, "gss_auth": False,
        "known_hosts": ([asyncssh.import_public_key(node.link_key)], [], []), "preferred_auth": "publickey",
    }  # fmt: skip


async def _bound(ssh: asyncssh.SSHClientConnection, node: Node, kind: str) -> asyncio.Server:
    """It does not listen yet: whoever is cancelled while one begins to is to have it, and close it. Raises OSError."""
    (settings.GPUSHARE_HOME / FOLDER).mkdir(mode=0o700, exist_ok=True)
    open_ = partial(ssh.create_unix_connection, remote_path=kind, window=WINDOW)
    with place_of(node, kind) as path:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Caller(_nothing, ssh, open_), path, start_serving=False)
        os.chmod(path, 0o600)
    return server


def _nothing() -> None:
    pass

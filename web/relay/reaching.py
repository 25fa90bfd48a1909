"""The web side's end: a connection to the scheduler of another host, for what only that has of a container."""

import asyncio
import secrets
import socket
from contextlib import suppress
from datetime import timedelta

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.conf import settings
from django.utils import timezone

from web.errors import Problem
from web.models import Container, Node, RelayOrder
from web.relay.carrier import KEY_BYTES, Side
from web.relay.sessions import sessions
from web.services.issuing import hint_channel, require_scheduler

ANSWERS_WITHIN = 15.0  # seconds
HINT_EVERY = 1.0
FORGOTTEN = timedelta(minutes=1)  # an order of a web side that was killed
HINT = "relay"  # the type of the message that says that there is an order


def elsewhere(container: Container) -> Node | None:
    """The node that has this container's output and terminal, if that is another host's than ours."""
    node = container.node
    return None if node is None or node.name == settings.GPUSHARE_NODE or not Node.several() else node


async def found_elsewhere(container: Container) -> Node | None:
    """The same for a loop: of a container of this host that was read with the name of its node, nobody is asked."""
    if vars(container).get("named_node") == settings.GPUSHARE_NODE:
        return None
    node: Node | None = await database_sync_to_async(elsewhere)(container)
    return node


def reach_now(node: Node, container: Container, kind: RelayOrder.Kind) -> socket.socket:
    """For threads that may wait. Raises Problem."""
    _require_redis(node, container)
    connection: socket.socket = sessions().run(_reach(node, container, kind)).result()
    return connection


async def reach(node: Node, container: Container, kind: RelayOrder.Kind) -> socket.socket:
    """A connected UNIX socket, at whose other end the node's scheduler listens. Raises Problem."""
    _require_redis(node, container)
    connection: socket.socket = await asyncio.wrap_future(sessions().run(_reach(node, container, kind)))
    return connection


def _require_redis(node: Node, container: Container) -> None:
    if not settings.REDIS_URL:
        raise Problem(
            "elsewhere",
            f'The output and the terminal of "{container.name}" are on {node.name}, and these pages are served by '
            f"{settings.GPUSHARE_NODE}. Without Redis (REDIS_URL) they cannot be passed on; on {node.name} itself they "
            "are there.",
            409,
        )


async def _reach(node: Node, container: Container, kind: RelayOrder.Kind) -> socket.socket:
    order = await sessions().ask(_order, node, container, kind)
    near, far = socket.socketpair()
    try:
        answered = asyncio.Event()
        sessions().keep(sessions().carry(order.pk, order.key, Side.WEB, far, answered))
        async with asyncio.timeout(ANSWERS_WITHIN):
            while not answered.is_set():
                await _hint(node)
                with suppress(TimeoutError):
                    async with asyncio.timeout(HINT_EVERY):
                        await answered.wait()
    except BaseException as error:
        near.close()
        if not isinstance(error, TimeoutError):
            raise
        raise Problem(
            "scheduler_away",
            f'The scheduler of "{node.name}" does not answer in time; try again shortly.', 503,
        ) from None  # fmt: skip
    finally:
        await sessions().ask(order.delete)  # nobody took it, or it is gone
    return near


def _order(node: Node, container: Container, kind: RelayOrder.Kind) -> RelayOrder:
    require_scheduler(node)
    RelayOrder.objects.filter(created_at__lt=timezone.now() - FORGOTTEN).delete()
    return RelayOrder.objects.create(
        node=node, container=container, kind=kind, key=secrets.token_bytes(KEY_BYTES)
    )  # fmt: skip


async def _hint(node: Node) -> None:
    """Lost ones are sent again."""
    with suppress(Exception):
        await get_channel_layer().send(hint_channel(node.pk), {"type": HINT})

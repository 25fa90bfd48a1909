"""A connection to the scheduler of another host, for what only that has of a container."""

import socket
from contextlib import AbstractContextManager
from enum import StrEnum

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings
from django.db.models import Q

from web.errors import Problem
from web.models import Container, Node
from web.relay.paths import short
from web.services.issuing import require_scheduler

FOLDER = "nodes"  # of GPUSHARE_HOME, at the web side
LINK = "link.json"  # there, at a node: [since when, why it is not linked to the web side; empty if it is]


class Kind(StrEnum):
    """Of a stream."""

    OUTPUT = "output"
    TERMINAL = "terminal"
    PORT = "port"


def elsewhere(container: Container) -> Node | None:
    """The node that has this container's output and terminal, if that is another host's than ours."""
    return None if Container.objects.filter(here(), pk=container.pk).exists() else container.node


def here() -> Q:
    """Containers of this host. A lone node that dials no web side is this host, whatever its name."""
    own = Q(node=None) | Q(node__name=settings.GPUSHARE_NODE)
    return own if Node.several() else own | Q(node__link_key="")


async def found_elsewhere(container: Container) -> Node | None:
    """The same for a loop: of a container of this host that was read with the name of its node, nobody is asked."""
    if vars(container).get("named_node") == settings.GPUSHARE_NODE:
        return None
    node: Node | None = await database_sync_to_async(elsewhere)(container)
    return node


def place_of(node: Node, kind: str) -> AbstractContextManager[str]:
    """Where streams of this kind to this node begin, on this host. Raises OSError."""
    return short(settings.GPUSHARE_HOME / FOLDER, f"{node.pk}.{kind}")


def reach_now(node: Node, kind: Kind) -> socket.socket:
    """A connected UNIX socket, at whose other end the node's scheduler listens. For threads. Raises Problem."""
    require_scheduler(node)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with place_of(node, kind) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise Problem(
            "scheduler_away",
            f'The scheduler of "{node.name}" is not linked to the web side (GPUSHARE_WEB); try again shortly.', 503,
        ) from None  # fmt: skip
    return connection


async def reach(node: Node, kind: Kind) -> socket.socket:
    """The same. Raises Problem."""
    connection: socket.socket = await database_sync_to_async(reach_now)(node, kind)
    return connection

"""The database's thread: every query of the scheduler runs in it, one after the other, on one connection.

So queries are in the order in which they were asked, and the event loop waits for none that it did not ask for.

Each transaction that writes keeps this node's row until its end (node_lease.py). A scheduler that stands still in
one, as on a host that hangs, would keep it from whoever takes the node's place; so PostgreSQL ends such a transaction.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from django.db import DatabaseError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from scheduler import threads

T = TypeVar("T")

THREAD = "database"
IDLE = 10  # seconds within a transaction without a statement; less than a node's name takes to be free


@dataclass(slots=True)
class Here:
    """This host's keys in the database: its own, and those of its GPUs by UUID. Known once the store is open."""

    node: int = 0
    holder: str = ""  # who has that node's name, if it is still us
    journal: str = ""  # the id of this host's journal, which its node has in the database; empty: it has none
    alone: bool = False  # the scheduler started without the database, which has not got yet what is kept
    gpus: dict[str, int] = field(default_factory=dict)


def folder() -> Path | None:
    """Where on this host the database's files are; None where that is another host, or it does not say."""
    if connection.vendor == "sqlite":
        return Path(str(connection.settings_dict["NAME"])).parent
    host = str(connection.settings_dict["HOST"])
    if host not in ("", "localhost", "127.0.0.1", "::1") and not host.startswith("/"):
        return None
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('data_directory')")
            return Path(cursor.fetchone()[0])
    except DatabaseError:  # it tells that to its own admins alone
        return None


class Database:
    def __init__(self) -> None:
        self.thread = threads.pool(1, THREAD)
        connection_created.connect(_end_if_idle, dispatch_uid=__name__)

    async def ask(self, query: Callable[..., T], *arguments: object) -> T:
        """Runs a query in the database's thread, which keeps its connection for the next."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, _ask, query, *arguments)

    async def close(self) -> None:
        await self.ask(connections.close_all)
        self.thread.shutdown()


def _end_if_idle(connection: BaseDatabaseWrapper, **_: object) -> None:
    """For each new connection of that thread; the web side's, which may be in the same process, are not ours."""
    if connection.vendor == "postgresql" and threading.current_thread().name.startswith(THREAD):
        with connection.cursor() as cursor:
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE}s'")


def _ask(query: Callable[..., T], *arguments: object) -> T:
    connection.close_if_unusable_or_obsolete()
    return query(*arguments)

"""The database's thread: every query of the scheduler runs in it, one after the other, on one connection.

So queries are in the order in which they were asked, and the event loop waits for none that it did not ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from django.db import DatabaseError, connection, connections

from scheduler import threads

T = TypeVar("T")


@dataclass(slots=True)
class Here:
    """This host's keys in the database: its own, and those of its GPUs by UUID. Known once the store is open."""

    node: int = 0
    holder: str = ""  # who has that node's name, if it is still us
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
        self.thread = threads.pool(1, "database")

    async def ask(self, query: Callable[..., T], *arguments: object) -> T:
        """Runs a query in the database's thread, which keeps its connection for the next."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, _ask, query, *arguments)

    async def close(self) -> None:
        await self.ask(connections.close_all)
        self.thread.shutdown()


def _ask(query: Callable[..., T], *arguments: object) -> T:
    connection.close_if_unusable_or_obsolete()
    return query(*arguments)

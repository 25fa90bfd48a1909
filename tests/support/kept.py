"""Stores of a host that keeps what it cannot write, for tests of what it kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from scheduler import store as stores
from scheduler.gpus import Card
from scheduler.store import Store, write_behind
from scheduler.store.journal import AsyncJournal
from tests.support.host import query
from web.models import Container


class Killed(Exception):
    """Here a scheduler was killed; nothing is asked of it any more."""


class Host:
    """Stores that keep what they cannot write, all of them in one place, as where the database is a server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    async def __call__(self, cards: dict[str, Card] | None = None) -> Store:
        store = Store("here", "us")
        await store.open(cards or {}, {})
        return store

    @asynccontextmanager
    async def alone(self, cards: dict[str, Card] | None = None) -> AsyncIterator[Store]:
        """Started without the database, which comes back after the block."""
        with self._monkeypatch.context() as meanwhile:
            meanwhile.setattr(stores, "_open", away)
            yield await self(cards)

    @asynccontextmanager
    async def without_database(self, store: Store) -> AsyncIterator[None]:
        """What the block records is kept here."""
        with self._monkeypatch.context() as meanwhile:
            meanwhile.setattr(write_behind, "write_batch", away)
            yield
            with pytest.raises(OperationalError):
                await store.flush()

    async def killed_before_it_notes(self, store: Store) -> None:
        """That the database has what it just wrote."""

        async def killed(*_: object) -> None:
            raise Killed

        self._monkeypatch.setattr(store.journal, "note", killed)
        with pytest.raises(Killed):
            await store.flush()
        await let_go(store)


@pytest.fixture
def opened(transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(stores, "_open_journal", lambda: AsyncJournal(tmp_path / "journal", 1 << 20))
    return Host(monkeypatch)


CARD = Card("GPU-a", 0, "Simulated card", 1 << 30, 1 << 30, 0, simulated=True)


@pytest.fixture
async def container(transactional_db: None) -> Container:
    owner = await query(User.objects.create, username="ada")
    return await query(Container.objects.create, name="a", owner=owner, image="local")


def away(*_: Any) -> None:
    raise OperationalError("the server is away")


async def learn(store: Store) -> None:
    await store.learn(await query(lambda: list(Container.objects.whole())), {})


async def let_go(store: Store) -> None:
    """Of a scheduler that was killed: what a test may not leave behind."""
    await store.journal.close()
    await store.database.close()

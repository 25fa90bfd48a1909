"""What a host has kept belongs to one database: another one, or a node that another host was, never gets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from scheduler import store as stores
from scheduler.store import Store, write_behind
from scheduler.store.journal import AsyncJournal
from scheduler.store.node_lease import NameTaken
from tests.support.host import query
from web.models import AllocationEvent, Container, Node


@pytest.fixture
def opened(transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Store]:
    """Stores that keep what they cannot write, all of them in one place, as where the database is a server."""
    monkeypatch.setattr(stores, "_open_journal", lambda: AsyncJournal(tmp_path / "journal", 1 << 20))
    return lambda: Store("here", "us")


@pytest.fixture
async def container(transactional_db: None) -> Container:
    owner = await query(User.objects.create, username="ada")
    return await query(Container.objects.create, name="a", owner=owner, image="local")


def _away(*_: Any) -> None:
    raise OperationalError("the server is away")


async def _let_go(store: Store) -> None:
    """Of a scheduler that was killed: what a test may not leave behind."""
    assert store.journal is not None
    await store.journal.close()
    await store.database.close()


def _of_another_journal(*_: Any) -> None:
    """As in another database that knows this home, or where another host had the name meanwhile."""
    Node.objects.filter(name="here").update(outbox="another")


async def _something_kept(store: Store, container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row, and something that happened."""
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "write_batch", _away)
        store.container(str(container.pk), reason="kept")
        store.event("idle", str(container.pk))
        with pytest.raises(OperationalError):
            await store.flush()


def _written(container: Container) -> tuple[str, int]:
    return Container.objects.get(pk=container.pk).reason, AllocationEvent.objects.filter(container=container).count()


async def test_what_is_set_aside_at_a_start_is_not_written(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what happened, nor the rows, which a start has read before it asks the database whose they are."""
    store = opened()
    await store.open({}, {})
    await _something_kept(store, container, monkeypatch)
    await _let_go(store)
    await query(_of_another_journal)
    again = opened()
    await again.open({}, {})
    await again.close()
    assert await query(_written, container) == ("", 0)


async def test_database_in_whose_place_another_answers_gets_nothing(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler lives on meanwhile. To the other database, its node's key and its name's holder are the same."""
    store = opened()
    await store.open({}, {})
    await _something_kept(store, container, monkeypatch)
    await query(_of_another_journal)
    with pytest.raises(NameTaken):
        await store.flush()
    with pytest.raises(OperationalError):
        await store.promises.make(container, {}, within_allowance=False)
    assert await store.records.commands() == []
    await store.close()
    assert await query(_written, container) == ("", 0)
    again = opened()
    await again.open({}, {})
    await again.close()
    assert await query(_written, container) == ("", 0)

"""What a host has kept of its own meets a database that has gone on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from scheduler import store as stores
from scheduler.store import Store, behind
from scheduler.store.keeping import Keeping
from scheduler.store.naming import NameTaken
from tests.support.host import query
from web.models import AllocationEvent, Container, Node


class Killed(Exception):
    """Here a scheduler was killed; nothing is asked of it any more."""


@pytest.fixture
def opened(transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Store]:
    """Stores that keep what they cannot write, all of them in one place, as where the database is a server."""
    monkeypatch.setattr(stores, "_keeping", lambda: Keeping(tmp_path / "outbox", 1 << 20))
    return lambda: Store("here", "us")


@pytest.fixture
async def container(transactional_db: None) -> Container:
    owner = await query(User.objects.create, username="ada")
    return await query(Container.objects.create, name="a", owner=owner, image="local")


def _away(*_: Any) -> None:
    raise OperationalError("the server is away")


async def _let_go(store: Store) -> None:
    """Of a scheduler that was killed: what a test may not leave behind."""
    assert store.keeping is not None
    await store.keeping._ask(store.keeping._outbox.close)
    store.keeping._thread.shutdown()
    await store.database.close()


async def test_value_that_was_kept_is_not_written_over_a_newer_one(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the database had the newer one, and before the older was let go of."""
    store = opened()
    await store.open({}, {})
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(behind, "_write", _away)
        store.container(str(container.pk), reason="the first")
        with pytest.raises(OperationalError):
            await store.flush()
    store.container(str(container.pk), reason="the second")

    async def killed(_: object) -> None:
        raise Killed

    assert store.keeping is not None
    monkeypatch.setattr(store.keeping, "rows_sent", killed)
    with pytest.raises(Killed):
        await store.flush()
    await _let_go(store)
    again = opened()
    await again.open({}, {})
    assert (await query(Container.objects.get, pk=container.pk)).reason == "the second"
    await again.close()


async def test_scheduler_that_started_alone_ends_where_another_host_has_had_its_name_meanwhile(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gave it back. Else it would go on for ever without the database, and be told of as away."""
    store = opened()
    await store.open({}, {})
    await store.close()
    alone = opened()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(stores, "_open", _away)
        await alone.open({}, {})
        alone.event("ended", str(container.pk))
        with pytest.raises(OperationalError):
            await alone.flush()
    await query(Node.objects.filter(name="here").update, outbox="of another host")
    with pytest.raises(NameTaken, match="another host has had its name"):
        await alone.flush()
    await _let_go(alone)
    again = opened()
    await again.open({}, {})
    assert not await query(AllocationEvent.objects.exists)
    await again.close()

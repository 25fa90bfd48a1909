"""What a host has kept belongs to one database: another one, or a node that another host was, never gets it."""

import pytest
from django.db import OperationalError

from scheduler.store import Store
from scheduler.store.node_lease import NameTaken
from tests.support.host import query
from tests.support.kept import Host, container, let_go, opened
from web.models import AllocationEvent, Container, Node

__all__ = ["container", "opened"]


def _of_another_journal() -> None:
    """As in another database that knows this home, or where another host had the name meanwhile."""
    Node.objects.filter(name="here").update(outbox="another")


async def _something_kept(opened: Host, container: Container) -> Store:
    """A row, and something that happened."""
    store = await opened()
    async with opened.without_database(store):
        store.container(str(container.pk), reason="kept")
        store.event("idle", str(container.pk))
    return store


def _written(container: Container) -> tuple[str, int]:
    return Container.objects.get(pk=container.pk).reason, AllocationEvent.objects.filter(container=container).count()


async def test_what_is_set_aside_at_a_start_is_not_written(opened: Host, container: Container) -> None:
    """Neither what happened, nor the rows, which a start has read before it asks the database whose they are."""
    await let_go(await _something_kept(opened, container))
    await query(_of_another_journal)
    await (await opened()).close()
    assert await query(_written, container) == ("", 0)


async def test_database_in_whose_place_another_answers_gets_nothing(opened: Host, container: Container) -> None:
    """The scheduler lives on meanwhile. To the other database, its node's key and its name's holder are the same."""
    store = await _something_kept(opened, container)
    await query(_of_another_journal)
    with pytest.raises(NameTaken):
        await store.flush()
    with pytest.raises(OperationalError):
        await store.promises.make(container, {}, within_allowance=False)
    assert await store.records.commands() == []
    await store.close()
    assert await query(_written, container) == ("", 0)
    await (await opened()).close()
    assert await query(_written, container) == ("", 0)

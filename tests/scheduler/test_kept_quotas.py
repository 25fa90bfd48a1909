"""Quotas that a host has kept of its own, and what holds them, as the database comes back."""

import sqlite3
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from scheduler.store import Store, write_behind
from scheduler.store.journal import Journal
from tests.support.host import query
from tests.support.kept import CARD, Host, away, container, learn, let_go, opened
from web.models import Claim, Container, Volume
from web.services import claiming, mounting
from web.services.placement import accept_placement

__all__ = ["container", "opened"]


async def begun(opened: Host, container: Container) -> tuple[Store, str, Container]:
    """A host that knows of a container that has started; with that and its row as a command has it."""
    store, id_ = await opened(), str(container.pk)
    store.container(id_, started_at=timezone.now())
    await store.flush()
    row = await query(Container.objects.whole().get, pk=container.pk)
    await learn(store)
    return store, id_, row


async def test_quota_that_is_changed_as_its_container_ends_does_not_make_the_host_know_that_as_living(
    opened: Host, container: Container
) -> None:
    """A scheduler that started without the database later would have recorded its end a second time."""
    store, id_, row = await begun(opened, container)
    store.container(id_, finished_at=timezone.now())
    await store.promises.make(row, {}, within_allowance=False)
    assert (await store.snapshot()).containers() == []
    await store.close()


async def test_end_is_not_forgotten_before_it_is_kept_where_a_quota_is_changed_at_that_moment(
    opened: Host, container: Container
) -> None:
    """Killed right then, and started without the database, a scheduler did not look for it, and its end was lost."""
    store, id_, row = await begun(opened, container)
    await store.flush()
    store.container(id_, finished_at=timezone.now())
    store.event("ended", id_)
    await store.promises.make(row, {}, within_allowance=False)
    await let_go(store)
    async with opened.alone() as alone:
        assert [str(row.pk) for row in await alone.records.living()] == [id_]
        await let_go(alone)


async def test_change_of_a_quota_does_not_make_the_host_forget_what_has_happened_since_it_was_asked_for(
    opened: Host, container: Container
) -> None:
    """Its command waits for the one before, and has the row of then: a start alone took what is out for what is not."""
    store, id_, row = await begun(opened, container)
    store.container(id_, swap="out", paused_at=timezone.now())
    store.container(id_, kill_requested_at=timezone.now(), reason="Killed by ada")
    await store.flush()
    await store.promises.make(row, {}, within_allowance=False)
    await store.flush()
    await let_go(store)
    async with opened.alone() as alone:
        (known,) = await alone.records.living()
        assert known.swap == "out"
        assert known.paused_at is not None
        assert (known.kill_requested_at is not None, known.reason) == (True, "Killed by ada")
        await let_go(alone)


async def test_quota_that_was_given_is_not_undone_by_one_that_is_kept_from_before(
    opened: Host, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first change was refused while the database was away; the second came as soon as it was back."""
    store, id_ = await opened({CARD.uuid: CARD}), str(container.pk)
    await store.promises.make(container, {CARD.uuid: 1 << 30}, within_allowance=False)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "_while_ours", away)
        meanwhile.setattr(write_behind, "write_batch", away)
        with pytest.raises(OperationalError):
            await store.promises.make(container, {CARD.uuid: 2 << 30}, within_allowance=False)
        store.claim(id_, CARD.uuid, quota=1 << 30)
        with pytest.raises(OperationalError):
            await store.flush()
    await store.promises.make(container, {CARD.uuid: 3 << 30}, within_allowance=False)
    store.claim(id_, CARD.uuid, quota=3 << 30)
    await store.close()
    again = await opened({CARD.uuid: CARD})
    assert (await query(Claim.objects.get)).quota == 3 << 30
    await again.close()


async def test_what_could_not_be_noted_is_noted_when_there_is_room_again(
    opened: Host, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it; and once more where the database is away as it is asked for that."""
    store = Store("here", "us")

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    row = await query(Container.objects.whole().get, pk=container.pk)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Journal, "promise", full)
        meanwhile.setattr(Journal, "learn", full)
        await store.open({CARD.uuid: CARD}, {})
        await query(Volume.objects.create, node_id=store.here, name="v", options={"owner": "ada"})
        await store.volumes.all()
        await store.promises.make(row, {CARD.uuid: 1 << 30}, within_allowance=False)
    known = await store.snapshot()
    assert (known.containers(), known.gpus(), known.volumes(), known.node()) == ([], {}, {}, (0, ""))
    store.node(late=1.0)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(store.records, "living", away)
        with pytest.raises(OperationalError):
            await store.flush()
    await store.flush()
    known = await store.snapshot()
    (living,) = known.containers()
    assert [(claim.gpu.uuid, claim.quota) for claim in living.claims.all()] == [(CARD.uuid, 1 << 30)]
    assert known.gpus().keys() == {CARD.uuid}
    assert (known.volumes(), known.node()) == ({"v": {"owner": "ada"}}, (store.here, "here"))
    await store.close()


@pytest.mark.parametrize(
    ("way", "query_", "arguments"),
    [("mount", (mounting, "mount"), ("v", {}, None)), ("accept", (accept_placement, "accept"), ("v", "m", None)),
     ("claim", (claiming, "claim"), (None,))],
)  # fmt: skip
async def test_quota_that_docker_has_had_given_is_not_followed_by_an_older_one(
    opened: Host, container: Container, monkeypatch: pytest.MonkeyPatch,
    way: str, query_: tuple[Any, str], arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    """Nothing is written behind between the query and what follows from it."""
    store, seen = await opened({CARD.uuid: CARD}), []
    await store.promises.make(container, {CARD.uuid: 1 << 30}, within_allowance=False)

    def gives(*_: Any) -> Container:
        seen.append(store._flushing.locked())
        return Container.objects.whole().get(pk=container.pk)

    monkeypatch.setattr(*query_, gives)
    await getattr(store.volumes, way)(*arguments)
    assert seen == [True]
    await store.close()


async def test_container_that_ended_without_the_database_holds_nothing_when_that_is_back(
    opened: Host, container: Container
) -> None:
    """Its end was kept, and the scheduler killed before it had recorded that nothing is held any more."""
    store, id_ = await opened({CARD.uuid: CARD}), str(container.pk)
    await query(Container.objects.filter(pk=container.pk).update, node=store.here)
    await store.promises.make(container, {CARD.uuid: 1 << 30}, within_allowance=False)
    async with opened.without_database(store):
        store.claim(id_, CARD.uuid, used=1 << 20)
        store.event("ended", id_)
        store.container(id_, finished_at=timezone.now())
    await let_go(store)
    async with opened.alone({CARD.uuid: CARD}) as alone:
        await alone.settle(list)
    await alone.flush()
    assert (await query(Claim.objects.get)).used == 0
    await alone.close()

"""What a host has kept of its own meets a database that has gone on meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone

from scheduler import store as stores
from scheduler.gpus import Card
from scheduler.store import Store, write_behind
from scheduler.store.journal import AsyncJournal, Journal
from scheduler.store.node_lease import NameTaken
from tests.support.eventually import eventually
from tests.support.host import query
from web.models import AllocationEvent, Claim, Command, Container, Node, Volume
from web.services import claiming, mounting
from web.services.placement import accept_placement


class Killed(Exception):
    """Here a scheduler was killed; nothing is asked of it any more."""


@pytest.fixture
def opened(transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Store]:
    """Stores that keep what they cannot write, all of them in one place, as where the database is a server."""
    monkeypatch.setattr(stores, "_open_journal", lambda: AsyncJournal(tmp_path / "journal", 1 << 20))
    return lambda: Store("here", "us")


CARD = Card("GPU-a", 0, "Simulated card", 1 << 30, 1 << 30, 0, simulated=True)


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


async def test_value_that_was_kept_is_not_written_over_a_newer_one(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the database had the newer one, and before the older was let go of."""
    store = opened()
    await store.open({}, {})
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "write_batch", _away)
        store.container(str(container.pk), reason="the first")
        with pytest.raises(OperationalError):
            await store.flush()
    store.container(str(container.pk), reason="the second")

    async def killed(*_: object) -> None:
        raise Killed

    assert store.journal is not None
    monkeypatch.setattr(store.journal, "note", killed)
    with pytest.raises(Killed):
        await store.flush()
    await _let_go(store)
    again = opened()
    await again.open({}, {})
    assert (await query(Container.objects.get, pk=container.pk)).reason == "the second"
    await again.close()


async def test_value_whose_note_failed_is_not_written_over_a_newer_one(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal did not hear that the database had the first one; then the scheduler was killed."""
    store, id_ = opened(), str(container.pk)
    await store.open({}, {})
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "write_batch", _away)
        store.container(id_, reason="the first")
        with pytest.raises(OperationalError):
            await store.flush()
    assert store.journal is not None
    ask, failed = store.journal.ask, []

    async def full(call: Any, *arguments: Any) -> Any:
        if call is Journal.sent and not failed:
            failed.append(call)
            raise OperationalError("disk is full")
        return await ask(call, *arguments)

    monkeypatch.setattr(store.journal, "ask", full)
    await store.flush()
    assert failed
    store.container(id_, reason="the second")
    await store.flush()
    await _let_go(store)
    again = opened()
    await again.open({}, {})
    assert (await query(Container.objects.get, pk=container.pk)).reason == "the second"
    await again.close()


async def test_end_that_comes_while_something_else_is_being_kept_is_not_forgotten_before_it_is_kept(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed then, and started without the database, a scheduler did not look for it, and nobody told its end."""
    store, id_ = opened(), str(container.pk)
    await store.open({}, {})
    await store.learn(await query(lambda: list(Container.objects.whole())), {})
    store.node(late=1.0)
    await store.flush()
    assert store.journal is not None
    ask = store.journal.ask

    async def meanwhile(*what: Any) -> None:
        await ask(*what)
        store.container(id_, finished_at=timezone.now())
        store.event("ended", id_)

    monkeypatch.setattr(write_behind, "write_batch", _away)
    monkeypatch.setattr(store.journal, "ask", meanwhile)
    store.event("idle", id_)
    with pytest.raises(OperationalError):
        await store.flush()
    await _let_go(store)
    alone = opened()
    monkeypatch.setattr(stores, "_open", _away)
    await alone.open({}, {})
    assert [str(row.pk) for row in await alone.records.living()] == [id_]
    await _let_go(alone)


async def test_quota_that_is_changed_as_its_container_ends_does_not_make_the_host_know_that_as_living(
    opened: Callable[[], Store], container: Container
) -> None:
    """A scheduler that started without the database later would have told its end a second time."""
    store, id_ = opened(), str(container.pk)
    await store.open({}, {})
    store.container(id_, started_at=timezone.now())
    await store.flush()
    row = await query(Container.objects.whole().get, pk=container.pk)
    await store.learn(await query(lambda: list(Container.objects.whole())), {})
    store.container(id_, finished_at=timezone.now())
    await store.promises.make(row, {}, within_allowance=False)
    assert (await store.snapshot()).containers() == []
    await store.close()


async def test_end_is_not_forgotten_before_it_is_kept_where_a_quota_is_changed_at_that_moment(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right then, and started without the database, a scheduler did not look for it, and nobody told its end."""
    store, id_ = opened(), str(container.pk)
    await store.open({}, {})
    store.container(id_, started_at=timezone.now())
    await store.flush()
    row = await query(Container.objects.whole().get, pk=container.pk)
    await store.learn(await query(lambda: list(Container.objects.whole())), {})
    await store.flush()
    store.container(id_, finished_at=timezone.now())
    store.event("ended", id_)
    await store.promises.make(row, {}, within_allowance=False)
    await _let_go(store)
    alone = opened()
    monkeypatch.setattr(stores, "_open", _away)
    await alone.open({}, {})
    assert [str(row.pk) for row in await alone.records.living()] == [id_]
    await _let_go(alone)


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


async def test_policy_that_an_admin_has_chosen_is_known_without_the_database(
    opened: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    await store.open({}, {})
    assert await store.records.policy_asked() == ""
    store.node(policy_asked="best-fit")
    await store.close()
    again = opened()
    await again.open({}, {})  # the database says so, and so it is kept
    assert await again.records.policy_asked() == "best-fit"
    await again.close()
    alone = opened()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(stores, "_open", _away)
        await alone.open({}, {})
        assert await alone.records.policy_asked() == "best-fit"
    await alone.close()


async def test_command_that_was_carried_out_is_not_taken_again_as_the_database_comes_back(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is kept here, and comes a moment after the database does: until then the row looks open."""
    store = opened()
    await store.open({}, {})
    command = await query(Command.objects.create, kind="launch", container=container, node_id=store.here)
    assert [each.pk for each in await store.records.commands()] == [command.pk]
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "write_batch", _away)
        store.command(command.pk, outcome="done", done_at=timezone.now())
        with pytest.raises(OperationalError):
            await store.flush()
    await _let_go(store)
    alone = opened()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(stores, "_open", _away)
        await alone.open({}, {})
    coming = asyncio.create_task(alone.flush())
    while not coming.done():
        assert await alone.records.commands() == []
        await asyncio.sleep(0)
    await coming
    assert await alone.records.commands() == []
    asked = await query(Command.objects.create, kind="kill", container=container, node_id=alone.here)
    assert [each.pk for each in await alone.records.commands()] == [asked.pk]
    await alone.close()


async def test_what_was_kept_is_in_the_database_before_anything_is_read_however_long_that_takes(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who has ended is taken over as living, and ends a second time."""
    store = opened()
    await store.open({}, {})
    await query(Container.objects.filter(pk=container.pk).update, node=store.here)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "write_batch", _away)
        store.event("ended", str(container.pk))
        store.container(str(container.pk), finished_at=timezone.now())
        with pytest.raises(OperationalError):
            await store.flush()
    await _let_go(store)
    write = write_behind.write_batch

    def slowly(*arguments: Any) -> None:
        time.sleep(0.3)
        write(*arguments)

    monkeypatch.setattr(write_behind, "SLOW", 0.05)
    monkeypatch.setattr(write_behind, "write_batch", slowly)
    again = opened()
    await again.open({}, {})
    assert await again.records.living() == []
    await again.close()


async def test_end_that_this_host_had_not_learnt_of_is_told_once(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the database had it, a scheduler that started without the database found it once more."""
    store, id_ = opened(), str(container.pk)
    await store.open({}, {})
    await store.learn(await query(lambda: list(Container.objects.whole())), {})
    await store.flush()

    async def killed(*_: object) -> None:
        raise Killed

    assert store.journal is not None
    monkeypatch.setattr(store.journal, "note", killed)
    store.event("ended", id_)
    store.container(id_, finished_at=timezone.now(), exit_code=0, reason="")
    with pytest.raises(Killed):
        await store.flush()
    await _let_go(store)
    ended = await query(Container.objects.get, pk=container.pk)
    alone = opened()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(stores, "_open", _away)
        await alone.open({}, {})
        assert [str(row.pk) for row in await alone.records.living()] == [id_]
        alone.event("ended", id_)
        gone = timezone.now()
        alone.container(id_, finished_at=gone, exit_code=None, reason="It is not there any more.", removed_at=gone)
        with pytest.raises(OperationalError):
            await alone.flush()
    await alone.flush()
    told = await query(lambda: [event.kind for event in AllocationEvent.objects.all()])
    row = await query(Container.objects.get, pk=container.pk)
    assert told == ["ended"]
    assert (row.finished_at, row.exit_code, row.reason) == (ended.finished_at, 0, "")
    assert row.removed_at == gone
    await alone.close()


async def test_change_of_a_quota_does_not_make_the_host_forget_what_has_happened_since_it_was_asked_for(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command waits for the one before, and has the row of then: a start alone took what is out for what is not."""
    store, id_ = opened(), str(container.pk)
    await store.open({}, {})
    store.container(id_, started_at=timezone.now())
    await store.flush()
    row = await query(Container.objects.whole().get, pk=container.pk)
    await store.learn(await query(lambda: list(Container.objects.whole())), {})
    store.container(id_, swap="out", paused_at=timezone.now())
    store.container(id_, kill_requested_at=timezone.now(), reason="Killed by ada")
    await store.flush()
    await store.promises.make(row, {}, within_allowance=False)
    await store.flush()
    await _let_go(store)
    alone = opened()
    monkeypatch.setattr(stores, "_open", _away)
    await alone.open({}, {})
    (known,) = await alone.records.living()
    assert known.swap == "out"
    assert known.paused_at is not None
    assert (known.kill_requested_at is not None, known.reason) == (True, "Killed by ada")
    await _let_go(alone)


async def test_quota_that_was_given_is_not_undone_by_one_that_is_kept_from_before(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first change was refused while the database was away; the second came as soon as it was back."""
    store, id_ = opened(), str(container.pk)
    await store.open({CARD.uuid: CARD}, {})
    await store.promises.make(container, {CARD.uuid: 1 << 30}, within_allowance=False)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "_while_ours", _away)
        meanwhile.setattr(write_behind, "write_batch", _away)
        with pytest.raises(OperationalError):
            await store.promises.make(container, {CARD.uuid: 2 << 30}, within_allowance=False)
        store.claim(id_, CARD.uuid, quota=1 << 30)
        with pytest.raises(OperationalError):
            await store.flush()
    await store.promises.make(container, {CARD.uuid: 3 << 30}, within_allowance=False)
    store.claim(id_, CARD.uuid, quota=3 << 30)
    await store.close()
    again = opened()
    await again.open({CARD.uuid: CARD}, {})
    assert (await query(Claim.objects.get)).quota == 3 << 30
    await again.close()


async def test_what_happened_stays_in_its_order_where_neither_the_database_nor_the_disk_takes_it(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of it, the database noted too small a number for the last one, and what it had came a second time."""
    store, id_ = opened(), str(container.pk)
    await store.open({}, {})
    assert store.journal is not None
    writing, fails, write = threading.Event(), threading.Event(), write_behind.write_batch

    def in_vain(*_: Any) -> None:
        writing.set()
        fails.wait()
        raise OperationalError("the server is away")

    async def no_room(*_: Any) -> None:
        fails.set()
        raise OperationalError("the disk is full")

    def unanswered(*arguments: Any) -> None:
        monkeypatch.setattr(write_behind, "write_batch", write)
        write(*arguments)
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "write_batch", in_vain)
        meanwhile.setattr(store.journal, "ask", no_room)
        store.event("accepted", id_)
        flush = asyncio.create_task(store.flush())
        await eventually(writing.is_set)
        store.event("freed", id_)
        store.away = True  # it takes too long
        for each in (store.durable(), flush):
            with pytest.raises(OperationalError):
                await each
    monkeypatch.setattr(write_behind, "write_batch", unanswered)
    with pytest.raises(OperationalError):
        await store.flush()
    await store.flush()
    told = AllocationEvent.objects.order_by("id").values_list("kind", flat=True)
    assert await query(lambda: list(told)) == ["accepted", "freed"]
    await store.close()


@pytest.mark.parametrize("again", ["while it is kept", "after it was kept"])
async def test_value_that_was_kept_while_it_was_written_does_not_stay_in_the_journal(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """The next scheduler would write it over what the database has had since."""
    store, id_ = opened(), str(container.pk)
    await store.open({}, {})
    assert store.journal is not None
    writing, goes_on, write = threading.Event(), threading.Event(), write_behind.write_batch

    def slowly(*arguments: Any) -> None:
        writing.set()
        goes_on.wait()
        write(*arguments)

    monkeypatch.setattr(write_behind, "write_batch", slowly)
    store.container(id_, reason="the first")
    flush = asyncio.create_task(store.flush())
    await eventually(writing.is_set)
    store.away = True  # it takes too long
    keeping = asyncio.create_task(store.durable())
    if again == "while it is kept":
        await asyncio.sleep(0)
        store.container(id_, reason="the second")
    await keeping
    store.container(id_, reason="the second")
    goes_on.set()
    await flush
    await store.flush()
    await store.finish()
    assert await store.journal.ask(Journal.rows) == {}
    assert (await query(Container.objects.get, pk=container.pk)).reason == "the second"
    await store.close()


async def test_what_could_not_be_noted_is_noted_when_there_is_room_again(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it; and once more where the database is away as it is asked for that."""
    store = opened()

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
        meanwhile.setattr(store.records, "living", _away)
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
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch,
    way: str, query_: tuple[Any, str], arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    """Nothing is written behind between the query and what follows from it."""
    store, seen = opened(), []
    await store.open({CARD.uuid: CARD}, {})
    await store.promises.make(container, {CARD.uuid: 1 << 30}, within_allowance=False)

    def gives(*_: Any) -> Container:
        seen.append(store._flushing.locked())
        return Container.objects.whole().get(pk=container.pk)

    monkeypatch.setattr(*query_, gives)
    await getattr(store.volumes, way)(*arguments)
    assert seen == [True]
    await store.close()


async def test_container_that_ended_without_the_database_holds_nothing_when_that_is_back(
    opened: Callable[[], Store], container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was kept, and the scheduler killed before it had told that nothing is held any more."""
    store, id_ = opened(), str(container.pk)
    await store.open({CARD.uuid: CARD}, {})
    await query(Container.objects.filter(pk=container.pk).update, node=store.here)
    await store.promises.make(container, {CARD.uuid: 1 << 30}, within_allowance=False)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(write_behind, "write_batch", _away)
        store.claim(id_, CARD.uuid, used=1 << 20)
        store.event("ended", id_)
        store.container(id_, finished_at=timezone.now())
        with pytest.raises(OperationalError):
            await store.flush()
    await _let_go(store)
    alone = opened()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(stores, "_open", _away)
        await alone.open({CARD.uuid: CARD}, {})
        await alone.settle(list)
    await alone.flush()
    assert (await query(Claim.objects.get)).used == 0
    await alone.close()

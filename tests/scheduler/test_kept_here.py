"""What a host has kept of its own meets a database that has gone on meanwhile."""

import asyncio
import threading
import time
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from scheduler.store import write_behind
from scheduler.store.journal import Journal
from scheduler.store.node_lease import NameTaken
from tests.support.eventually import eventually
from tests.support.host import query
from tests.support.kept import Host, Killed, away, container, learn, let_go, opened
from web.models import AllocationEvent, Command, Container, Node

__all__ = ["container", "opened"]


async def test_value_that_was_kept_is_not_written_over_a_newer_one(opened: Host, container: Container) -> None:
    """Killed after the database had the newer one, and before the older was let go of."""
    store = await opened()
    async with opened.without_database(store):
        store.container(str(container.pk), reason="the first")
    store.container(str(container.pk), reason="the second")

    await opened.killed_before_it_notes(store)
    again = await opened()
    assert (await query(Container.objects.get, pk=container.pk)).reason == "the second"
    await again.close()


async def test_what_is_kept_of_a_row_as_the_database_comes_back_has_its_events_with_it(
    opened: Host, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the start's row was kept once more, and before the database had it: the next scheduler finds that it
    has started, and would record no start."""
    store, id_ = await opened(), str(container.pk)
    async with opened.without_database(store):
        store.container(id_, reason="the first")
    real = write_behind.write_batch

    def killed(rows: Any, *others: Any) -> None:
        if any("started_at" in fields for fields in rows.values()):
            raise Killed
        real(rows, *others)

    store.container(id_, started_at=timezone.now())
    store.event("started", id_)
    with monkeypatch.context() as now:
        now.setattr(write_behind, "write_batch", killed)
        with pytest.raises(Killed):
            await store.flush()
    await let_go(store)
    again = await opened()
    await again.flush()
    assert (await query(Container.objects.get, pk=container.pk)).started_at is not None
    kinds = await query(lambda: list(AllocationEvent.objects.filter(container=id_).values_list("kind", flat=True)))
    assert kinds == ["started"]
    await again.close()


async def test_value_whose_note_failed_is_not_written_over_a_newer_one(
    opened: Host, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal did not hear that the database had the first one; then the scheduler was killed."""
    store, id_ = await opened(), str(container.pk)
    async with opened.without_database(store):
        store.container(id_, reason="the first")
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
    await let_go(store)
    again = await opened()
    assert (await query(Container.objects.get, pk=container.pk)).reason == "the second"
    await again.close()


async def test_end_that_comes_while_something_else_is_being_kept_is_not_forgotten_before_it_is_kept(
    opened: Host, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed then, and started without the database, a scheduler did not look for it, and no event recorded its end."""
    store, id_ = await opened(), str(container.pk)
    await learn(store)
    store.node(late=1.0)
    await store.flush()
    ask = store.journal.ask

    async def meanwhile(*what: Any) -> None:
        await ask(*what)
        store.container(id_, finished_at=timezone.now())
        store.event("ended", id_)

    monkeypatch.setattr(write_behind, "write_batch", away)
    monkeypatch.setattr(store.journal, "ask", meanwhile)
    store.event("idle", id_)
    with pytest.raises(OperationalError):
        await store.flush()
    await let_go(store)
    async with opened.alone() as alone:
        assert [str(row.pk) for row in await alone.records.living()] == [id_]
        await let_go(alone)


async def test_scheduler_that_started_alone_ends_where_another_host_has_had_its_name_meanwhile(
    opened: Host, container: Container
) -> None:
    """And gave it back. Else it would go on for ever without the database, and be shown as away."""
    store = await opened()
    await store.close()
    async with opened.alone() as alone:
        alone.event("ended", str(container.pk))
        with pytest.raises(OperationalError):
            await alone.flush()
    await query(Node.objects.filter(name="here").update, outbox="of another host")
    with pytest.raises(NameTaken, match="another host has had its name"):
        await alone.flush()
    await let_go(alone)
    again = await opened()
    assert not await query(AllocationEvent.objects.exists)
    await again.close()


async def test_policy_that_an_admin_has_chosen_is_known_without_the_database(opened: Host) -> None:
    store = await opened()
    assert await store.records.policy_asked() == ""
    store.node(policy_asked="best-fit")
    await store.close()
    again = await opened()  # the database says so, and so it is kept
    assert await again.records.policy_asked() == "best-fit"
    await again.close()
    async with opened.alone() as alone:
        assert await alone.records.policy_asked() == "best-fit"
    await alone.close()


async def test_command_that_was_carried_out_is_not_taken_again_as_the_database_comes_back(
    opened: Host, container: Container
) -> None:
    """Its outcome is kept here, and comes a moment after the database does: until then the row looks open."""
    store = await opened()
    command = await query(Command.objects.create, kind="launch", container=container, node_id=store.here)
    assert [each.pk for each in await store.records.commands()] == [command.pk]
    async with opened.without_database(store):
        store.command(command.pk, outcome="done", done_at=timezone.now())
    await let_go(store)
    async with opened.alone() as alone:
        pass
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
    opened: Host, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who has ended is taken over as living, and ends a second time."""
    store = await opened()
    await query(Container.objects.filter(pk=container.pk).update, node=store.here)
    async with opened.without_database(store):
        store.event("ended", str(container.pk))
        store.container(str(container.pk), finished_at=timezone.now())
    await let_go(store)
    write = write_behind.write_batch

    def slowly(*arguments: Any) -> None:
        time.sleep(0.3)
        write(*arguments)

    monkeypatch.setattr(write_behind, "SLOW", 0.05)
    monkeypatch.setattr(write_behind, "write_batch", slowly)
    again = await opened()
    assert await again.records.living() == []
    await again.close()


async def test_end_that_this_host_had_not_learnt_of_is_reported_once(opened: Host, container: Container) -> None:
    """Killed after the database had it, a scheduler that started without the database found it once more."""
    store, id_ = await opened(), str(container.pk)
    await learn(store)
    await store.flush()

    store.event("ended", id_)
    store.container(id_, finished_at=timezone.now(), exit_code=0, reason="")
    await opened.killed_before_it_notes(store)
    ended = await query(Container.objects.get, pk=container.pk)
    async with opened.alone() as alone:
        assert [str(row.pk) for row in await alone.records.living()] == [id_]
        alone.event("ended", id_)
        gone = timezone.now()
        alone.container(id_, finished_at=gone, exit_code=None, reason="It is not there any more.", removed_at=gone)
        with pytest.raises(OperationalError):
            await alone.flush()
    await alone.flush()
    kinds = await query(lambda: [event.kind for event in AllocationEvent.objects.all()])
    row = await query(Container.objects.get, pk=container.pk)
    assert kinds == ["ended"]
    assert (row.finished_at, row.exit_code, row.reason) == (ended.finished_at, 0, "")
    assert row.removed_at == gone
    await alone.close()


async def test_what_happened_stays_in_its_order_where_neither_the_database_nor_the_disk_takes_it(
    opened: Host, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of it, the database noted too small a number for the last one, and what it had came a second time."""
    store, id_ = await opened(), str(container.pk)
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
    kinds = AllocationEvent.objects.order_by("id").values_list("kind", flat=True)
    assert await query(lambda: list(kinds)) == ["accepted", "freed"]
    await store.close()


@pytest.mark.parametrize("again", ["while it is kept", "after it was kept"])
async def test_value_that_was_kept_while_it_was_written_does_not_stay_in_the_journal(
    opened: Host, container: Container, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next scheduler would write it over what the database has had since."""
    store, id_ = await opened(), str(container.pk)
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

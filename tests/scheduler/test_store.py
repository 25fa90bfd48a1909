"""What is remembered gets written, in order, whatever the database does meanwhile; and nothing waits for it."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection
from django.utils import timezone

from scheduler.gpus import Card
from scheduler.store import Store, write_behind
from scheduler.store.node_lease import NameTaken
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import query
from tests.support.inprocess.host import InProcess
from web.audit import verify
from web.models import AllocationEvent, Claim, Command, Container, Node, Volume
from web.services import nodes
from web.services.mounting import Mounting

EVENTS = 4000


async def _bystander() -> Container:
    owner = await query(User.objects.create, username="bystander")
    return await query(Container.objects.create, name="bystander", owner=owner, image="local")


def _sizes(container: Container) -> list[int]:
    return list(AllocationEvent.objects.filter(container=container).order_by("id").values_list("bytes", flat=True))


async def test_writing_ends_though_somebody_waits_for_it_at_that_very_moment(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that came with a hurry was swallowed: the scheduler never ended, and kept the next one out."""
    monkeypatch.setattr(write_behind, "PAUSE", 60.0)
    store = Store("here")
    running = asyncio.create_task(store.run())
    store.node(policy="fifo")
    await eventually(lambda: store._awaited._waiters)  # it has written, and rests
    store.hurry()
    running.cancel()
    await asyncio.wait([running], timeout=PATIENCE)
    assert running.cancelled()
    await store.close()


async def test_thousands_of_events_are_written_in_their_order_and_sealed(host: InProcess) -> None:
    """How late that makes decisions is measured by `benchmarks/write_path.py`."""
    container = await _bystander()
    gpu = next(iter(host.up.gpus.cards))
    for number in range(EVENTS):
        host.up.store.event("accepted", str(container.pk), gpu=gpu, size=number, used_after=number, policy="fifo")
        if not number % 4:  # other work of the loop's comes in between
            await asyncio.sleep(0)
    await host.up.store.flush()
    await host.eventually(lambda: not host.up.store.waiting)
    assert await query(_sizes, container) == list(range(EVENTS))
    sound, faults = await query(verify)
    assert faults == []
    assert sound > 0


async def test_what_happened_before_something_that_is_written_already_leaves_the_chain_sound(host: InProcess) -> None:
    container = await _bystander()
    now = timezone.now()
    for kind, at in (("ended", now), ("paused", now - timedelta(minutes=1))):
        host.up.store.event(kind, str(container.pk), at=at)
        await host.up.store.flush()
    assert [event.at for event in await host.events(container)] == [now, now - timedelta(minutes=1)]
    assert (await query(verify))[1] == []


async def test_locked_database_delays_no_decision_and_loses_nothing(host: InProcess, monkeypatch) -> None:
    write, refused = write_behind.write_batch, []

    def impatient(*arguments: object) -> None:
        connection.cursor().execute("PRAGMA busy_timeout = 0")  # as if the twenty seconds were over
        try:
            write(*arguments)
        except OperationalError as error:
            refused.append(str(error))
            raise

    monkeypatch.setattr(write_behind, "write_batch", impatient)
    other = await asyncio.to_thread(sqlite3.connect, connection.settings_dict["NAME"], check_same_thread=False)
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    host.up.store.node(driver="another")
    await host.eventually(lambda: len(refused) > 1)  # the loop goes on, and tries again
    assert host.up.store.waiting
    await asyncio.to_thread(other.rollback)
    await asyncio.to_thread(other.close)
    await host.eventually(lambda: not host.up.store.waiting)
    assert set(refused) == {"database is locked"}
    assert (await query(Node.objects.get)).driver == "another"


async def test_failed_write_is_tried_again_with_everything_recorded_meanwhile(host: InProcess, monkeypatch) -> None:
    container = await _bystander()
    failures = iter([OperationalError("disk full"), OperationalError("disk full")])
    write = write_behind.write_batch

    def failing(*arguments: object) -> None:
        for failure in failures:
            raise failure
        write(*arguments)

    monkeypatch.setattr(write_behind, "write_batch", failing)
    for number in range(3):
        host.up.store.event("accepted", str(container.pk), size=number)
        host.up.store.container(str(container.pk), reason=f"number {number}")
        await asyncio.sleep(3)
    await host.eventually(lambda: not host.up.store.waiting)
    sizes = await query(
        lambda: list(AllocationEvent.objects.filter(container=container).values_list("bytes", flat=True))
    )
    assert sizes == [0, 1, 2]
    assert (await query(Container.objects.get, pk=container.pk)).reason == "number 2"


async def test_nothing_is_promised_or_mounted_once_the_name_is_another_s(database: None, settings: Any) -> None:
    """A launch that was under way when a host stood still: the name's next scheduler begins the same one."""
    settings.GPUSHARE_PLUGIN_PEOPLE = ["bystander"]
    container = await _bystander()
    store = Store("contested", "one")
    await store.open({"GPU-1": Card("GPU-1", 0, "a card", 4 << 30, 4 << 30, 0, simulated=True)}, {})
    asked = Mounting(uuid4(), "a mount", "mounted", "local", (), 1 << 28, ["GPU-1"])
    await store.volumes.make("data", {})
    await query(Node.objects.filter(name="contested").update, holder="two")
    for begun in (
        store.promises.make(container, {"GPU-1": 1 << 28}, within_allowance=False),
        store.volumes.mount("data", {}, asked),
        store.volumes.make("more", {}),
        store.volumes.remove("data"),
    ):
        with pytest.raises(OperationalError, match="another one took its node's name"):
            await begun
    assert not await query(Claim.objects.exists)
    assert await query(lambda: [each.name for each in Container.objects.all()]) == ["bystander"]
    assert await query(lambda: [each.name for each in Volume.objects.all()]) == ["data"]
    assert store.lost.is_set()
    await store.close()


async def test_who_paused_a_container_last_is_known(alone: Store) -> None:
    container = await _bystander()
    for name in ("first", "last"):
        by = await query(User.objects.create, username=name)
        done = {"kind": Command.Kind.PAUSE, "outcome": Command.Outcome.DONE, "container": container, "issued_by": by}
        await query(partial(Command.objects.create, **done))
    assert await alone.records.paused_by([str(container.pk)]) == {str(container.pk): "last"}


async def test_scheduler_that_was_away_while_its_node_was_removed_begins_anew(database: None) -> None:
    """Else it would go on unseen: its node is on no list, and gets no launches."""
    store = Store("removed", "one")
    await store.open({}, {})
    await query(Node.objects.filter(name="removed").update, started_at=timezone.now() - timedelta(minutes=1))
    await query(nodes.expel, "root", "removed", force=True)
    store.node(seen_at=timezone.now())
    with pytest.raises(NameTaken, match="an admin removed the"):
        await store.flush()
    await store.close()
    again = Store("removed", "one")
    await again.open({}, {})
    assert await query(Node.objects.listed().filter(name="removed").exists)
    await again.close()


async def test_what_was_lost_with_its_node_stays_so_whatever_that_brings_later(alone: Store) -> None:
    container = await _bystander()
    await query(Container.objects.update, node=await query(Node.objects.get, name="alone"))
    await query(Node.objects.update, started_at=None)
    await query(nodes.expel, "root", "alone", force=True)
    again = Store("alone")
    await again.open({}, {})
    again.event("ended", str(container.pk), detail="exit code 0")
    again.container(str(container.pk), paused_at=timezone.now(), reason="", exit_code=0)
    await again.close()
    found = await query(Container.objects.get, pk=container.pk)
    assert (found.reason, found.paused_at, found.exit_code) == ("Lost with its node.", None, None)
    events = await query(lambda: list(AllocationEvent.objects.order_by("id").values_list("detail", flat=True)))
    assert events == ["Lost with its node.", "exit code 0"]


async def test_node_that_is_removed_while_its_scheduler_starts_is_there_again(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await query(Node.objects.create, name="removed")
    found = Node.objects.get_or_create

    def and_removed(name: str) -> tuple[Node, bool]:
        node = found(name=name)
        nodes.expel("root", name)
        return node

    monkeypatch.setattr(Node.objects, "get_or_create", and_removed)
    store = Store("removed", "one")
    await store.open({}, {})
    assert await query(Node.objects.listed().filter(name="removed").exists)
    await store.close()


@pytest.fixture
async def alone(database: None) -> AsyncIterator[Store]:
    """A store without a scheduler: it writes when it is asked to."""
    store = Store("alone")
    await store.open({}, {})
    yield store
    await store.close()


async def _held_up(store: Store, writing: Coroutine[Any, Any, None]) -> tuple[threading.Event, asyncio.Task[None]]:
    """Starts to write, and lets the write wait for another query until the event is set."""
    go_on = threading.Event()
    store.database.thread.submit(go_on.wait, 10)
    task = asyncio.create_task(writing)
    await eventually(store._flushing.locked)
    return go_on, task


async def test_value_that_goes_back_while_it_is_being_written_goes_back_in_the_database(alone: Store) -> None:
    container = await _bystander()
    write = partial(alone.container, str(container.pk))
    write(paused_at=None)
    await alone.flush()
    write(paused_at=timezone.now())
    go_on, writing = await _held_up(alone, alone.flush())
    write(paused_at=None)
    go_on.set()
    await writing
    await alone.flush()
    await query(container.refresh_from_db)
    assert container.paused_at is None


async def test_stop_loses_nothing_that_is_being_written_or_waits(database: None) -> None:
    stopped = Store("stopped")
    await stopped.open({}, {})
    container = await _bystander()
    many = write_behind.BATCH * 2 + 1
    for number in range(many):
        stopped.event("accepted", str(container.pk), size=number)
    stopped.container(str(container.pk), finished_at=timezone.now())
    go_on, running = await _held_up(stopped, stopped.run())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    go_on.set()
    await stopped.close()
    assert await query(_sizes, container) == list(range(many))
    await query(container.refresh_from_db)
    assert container.finished_at is not None


async def test_what_was_written_before_a_failure_is_not_written_again(alone: Store, monkeypatch) -> None:
    """One event is never taken, so they are written one by one; then the database goes away for a moment."""
    container = await _bystander()
    write, failures = (
        write_behind.write_batch,
        iter([False, False, False, True]),
    )  # all together; the bad one; the next; the last

    def failing(*arguments: Any) -> None:
        if next(failures, False):
            raise OperationalError("database is locked")
        write(*arguments)

    monkeypatch.setattr(write_behind, "write_batch", failing)
    alone.event("accepted", str(uuid4()), size=1)
    for size in (2, 3):
        alone.event("accepted", str(container.pk), size=size)
    with pytest.raises(OperationalError):
        await alone.flush()
    await alone.flush()
    assert await query(_sizes, container) == [2, 3]


async def test_raised_quota_is_not_overwritten_by_a_lower_one_from_before(host: InProcess) -> None:
    container = await _bystander()
    [gpu] = host.up.gpus.cards
    # Of the same host, whose cards these are; nobody but us tells it when to write.
    other = Store(host.up.store._name, host.up.store._here.holder)
    await other.open(host.up.gpus.cards, host.up.gpus.contexts)
    await other.promises.make(container, {gpu: 2 << 30}, within_allowance=False)
    other.claim(str(container.pk), gpu, quota=1 << 30)
    raising = asyncio.create_task(other.promises.make(container, {gpu: 3 << 30}, within_allowance=True))
    await asyncio.sleep(0)
    writing = asyncio.create_task(other.flush())
    await raising
    other.claim(str(container.pk), gpu, quota=3 << 30)
    await writing
    await other.database.close()
    assert await host.up.store.promises.made(container) == {gpu: 3 << 30}


async def test_promise_makes_and_changes_claims(host: InProcess) -> None:
    container = await _bystander()
    [gpu] = host.up.gpus.cards
    for size in (1 << 30, 2 << 30):
        await host.up.store.promises.make(container, {gpu: size}, within_allowance=True)
        assert await host.up.store.promises.made(container) == {gpu: size}
    host.up.store.claim(str(container.pk), gpu, used=4096, quota=1 << 30)
    await host.up.store.flush()
    claim = await query(container.claims.get)
    assert (claim.quota, claim.used) == (1 << 30, 4096)


async def test_row_that_the_database_will_never_take_does_not_hold_up_the_others(host: InProcess) -> None:
    container = await _bystander()
    store = host.up.store
    store.event("accepted", "00000000-0000-0000-0000-000000000000", size=1)  # no such container
    store.event("accepted", str(container.pk), size=2)
    store.container(str(container.pk), reason="reported")
    await host.eventually(lambda: not store.waiting)
    assert await query(AllocationEvent.objects.filter(container=container).count) == 1
    assert (await query(Container.objects.get, pk=container.pk)).reason == "reported"


async def test_text_that_cannot_be_encoded_takes_nothing_else_with_it(alone: Store) -> None:
    """Half a surrogate pair, as an engine's message may hold: Python refuses it, before the database could."""
    container = await _bystander()
    alone.event("accepted", str(container.pk), size=1, detail="\ud800")
    alone.event("accepted", str(container.pk), size=2)
    alone.container(str(container.pk), reason="reported")
    await alone.flush()
    assert await query(_sizes, container) == [2]
    assert (await query(Container.objects.get, pk=container.pk)).reason == "reported"


async def test_word_that_the_database_will_never_take_leaves_no_command_open(alone: Store) -> None:
    """As a message of an engine's may hold one."""
    command = await query(Command.objects.create, kind="reorder")
    alone.command(command.pk, outcome="refused", done_at=timezone.now(), code="bad", status=400, message="\ud800")
    await alone.flush()
    await query(command.refresh_from_db)
    assert command.done_at is not None
    assert (command.outcome, command.code, command.status, command.message) == ("refused", "bad", 400, "")


@pytest.mark.parametrize("refused", [False, True])
async def test_row_is_never_there_before_what_happened_until_then(alone: Store, monkeypatch, refused: bool) -> None:
    container = await _bystander()
    monkeypatch.setattr(write_behind, "BATCH", 2)
    write, seen = write_behind.write_batch, []

    def looked(*arguments: Any) -> None:
        write(*arguments)
        seen.append((Container.objects.get(pk=container.pk).reason, len(_sizes(container))))

    monkeypatch.setattr(write_behind, "write_batch", looked)
    for size in range(5):
        alone.event("accepted", str(container.pk), size=size)
    if refused:
        alone.event("accepted", str(uuid4()))  # and so all of its batch are written one by one
    alone.container(str(container.pk), reason="five")
    await alone.durable()
    assert seen[-1] == ("five", 5)
    assert all(reason == "" or events == 5 for reason, events in seen)


@pytest.mark.parametrize("failure", [InterfaceError("the connection is closed"), MemoryError()])
async def test_what_fails_by_anything_else_is_kept_too(alone: Store, monkeypatch, failure: Exception) -> None:
    """Django's InterfaceError is no DatabaseError."""
    container = await _bystander()

    def failing(*_: Any) -> None:
        raise failure

    alone.event("accepted", str(container.pk), size=1)
    with monkeypatch.context() as broken:
        broken.setattr(write_behind, "write_batch", failing)
        with pytest.raises(type(failure)):
            await alone.flush()
    await alone.flush()
    assert await query(_sizes, container) == [1]


async def test_name_that_another_home_has_is_refused(database: None) -> None:
    one, two = Store("shared", "one"), Store("shared", "two")
    await one.open({}, {})
    with pytest.raises(NameTaken, match='node name "shared"'):
        await two.open({}, {})
    await one.close()
    await two.open({}, {})
    await two.close()


async def test_nothing_is_written_once_the_name_is_another_s(database: None) -> None:
    """Not even a batch without a sign of life in it."""
    container = await _bystander()
    store = Store("contested", "one")
    await store.open({}, {})
    await query(Node.objects.filter(name="contested").update, holder="two")
    for telling in (partial(store.event, "accepted", str(container.pk), size=1), partial(store.node, policy="fifo")):
        telling()
        with pytest.raises(NameTaken):
            await store.flush()
    assert await query(_sizes, container) == []
    assert (await query(Node.objects.get, name="contested")).policy == ""
    await store.close()
    assert (await query(Node.objects.get, name="contested")).holder == "two"

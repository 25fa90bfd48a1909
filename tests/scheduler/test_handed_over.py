"""What was handed to a Swarm: its record and the audit agree, whenever the scheduler is killed, and a kill finds it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone

from scheduler.containers.dispatcher import CameToANode, Dispatcher
from scheduler.engines import placer
from scheduler.engines.base import EngineError
from scheduler.engines.placer import Stage, Standing
from scheduler.store import Store, pending_placements
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import Host, host, query
from web.errors import Problem
from web.models import AllocationEvent, Command, Container, Node
from web.services import nodes
from web.services.placement import accept_placement
from web.services.placement.placement_ticket import PlacementTicket

__all__ = ["host"]


ANY: Any = None


class Swarm:
    """One that does what it is asked. Of each launch it says the same."""

    name = "swarm"
    taken_back: list[str]

    def __init__(self, said: str = "") -> None:
        self.taken_back, self._said = [], said

    async def spare(self, hosts: Mapping[str, bool]) -> None: ...

    async def standing(self) -> dict[str, Standing]:
        ids = await query(lambda: [str(each.pk) for each in Container.objects.all()])
        return {id_: Standing(Stage.WAITS, self._said) for id_ in ids}

    async def take_back(self, id_: str) -> None:
        self.taken_back.append(id_)


@pytest.fixture
async def waiting(transactional_db: None) -> Container:
    owner = await query(User.objects.create, username="ada")
    node = await query(Node.objects.create, name="manager")
    made: Container = await query(
        Container.objects.create, name="a", owner=owner, image="local", node=node, engine="swarm", handed="key"
    )
    return made


async def _until(asked: Callable[[], bool]) -> None:
    """Of the database."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if await query(asked):
                return
            await asyncio.sleep(0.02)


def _events() -> list[tuple[str, str]]:
    return list(AllocationEvent.objects.order_by("id").values_list("kind", "detail"))


async def test_record_of_one_that_was_called_off_has_its_end_in_the_audit_though_nothing_is_written_after_it(
    waiting: Container,
) -> None:
    """As where the scheduler is killed at once: an event that it only remembered was never recorded."""
    store, swarm = Store("manager", "us"), Swarm()
    await store.open({}, {})
    await Dispatcher(swarm, ANY, store).call_off(waiting, "Killed by ada.")  # type: ignore[arg-type]
    reported = await query(_events)
    found = await query(Container.objects.get, pk=waiting.pk)
    await store.close()
    assert found.finished_at is not None
    assert found.reason == "Killed by ada."
    assert swarm.taken_back == [str(waiting.pk)]
    assert reported == [("killed", "Killed by ada."), ("ended", "Killed by ada.")]


async def test_end_of_one_that_was_called_off_is_at_one_time_in_record_and_audit(waiting: Container) -> None:
    store = Store("manager", "us")
    await store.open({}, {})
    await Dispatcher(Swarm(), ANY, store).call_off(waiting, "Killed by ada.")  # type: ignore[arg-type]
    found = await query(Container.objects.get, pk=waiting.pk)
    times = await query(lambda: dict(AllocationEvent.objects.values_list("kind", "at")))
    await store.close()
    assert times == {"killed": found.kill_requested_at, "ended": found.finished_at}


async def test_one_that_is_called_off_by_two_schedulers_one_after_the_other_is_reported_as_killed_once(
    waiting: Container,
) -> None:
    """The first was killed before it could take it back."""

    class Dies(Swarm):
        async def take_back(self, id_: str) -> None:
            raise EngineError("The scheduler is killed here.")

    store = Store("manager", "us")
    await store.open({}, {})
    with pytest.raises(EngineError):
        await Dispatcher(Dies(), ANY, store).call_off(waiting, "Killed by ada.")  # type: ignore[arg-type]
    again = await query(Container.objects.get, pk=waiting.pk)
    await Dispatcher(Swarm(), ANY, store).call_off(again, "Killed by ada.")  # type: ignore[arg-type]
    await store.close()
    assert [kind for kind, _ in await query(_events)] == ["killed", "ended"]


class Emptied(Swarm):
    """No host of it takes anything just now."""

    async def hosts(self) -> list[placer.Host]:
        return [placer.Host("two", {0: 1 << 30}, {}, there=False)]


async def test_launch_that_is_asked_for_again_and_refused_is_not_ended_where_a_node_has_it_already(
    waiting: Container,
) -> None:
    """A scheduler gave it to the Swarm and died before it said so; then the hosts went away."""
    store = Store("manager", "us")
    await store.open({}, {})
    row = await query(Container.objects.select_related("owner").get, pk=waiting.pk)
    row.gpu_memory = 900 << 20
    await query(Container.objects.update, mount="on a node")
    assert await Dispatcher(Emptied(), ANY, store).launch(row, None) == "A node has it."  # type: ignore[arg-type]
    await store.close()


async def test_launch_that_is_refused_can_be_taken_by_no_node_from_then_on(waiting: Container) -> None:
    store = Store("manager", "us")
    await store.open({}, {})
    row = await query(Container.objects.select_related("owner").get, pk=waiting.pk)
    row.gpu_memory = 900 << 20
    with pytest.raises(Problem, match="No node of this Swarm takes containers"):
        await Dispatcher(Emptied(), ANY, store).launch(row, None)  # type: ignore[arg-type]
    ticket = PlacementTicket(waiting.pk, 900 << 20, (0,), "key")
    with pytest.raises(Problem, match="was cancelled"):
        await query(accept_placement.accept, store.here, "volume", "mount", ticket)
    await store.close()


async def test_launch_that_a_dead_scheduler_had_given_up_is_not_given_again(waiting: Container) -> None:
    """What the Swarm has of it has another key: it was reported as done, and then as called off by nobody."""
    store = Store("manager", "us")
    await store.open({}, {})
    await query(Container.objects.update, handed="")
    row = await query(Container.objects.select_related("owner").get, pk=waiting.pk)
    with pytest.raises(Problem, match="ended before the Swarm answered"):
        await Dispatcher(Swarm(), ANY, store).launch(row, None)  # type: ignore[arg-type]
    await store.close()


async def test_one_that_came_to_a_node_meanwhile_is_not_reported_as_killed(waiting: Container) -> None:
    store = Store("manager", "us")
    await store.open({}, {})
    await query(Container.objects.update, mount="on a node")
    with pytest.raises(CameToANode):
        await Dispatcher(Swarm(), ANY, store).call_off(waiting, "Killed by ada.")  # type: ignore[arg-type]
    await store.close()
    assert await query(_events) == []


class Slow(Swarm):
    """It has one host of two cards. What is asked of it takes a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Counter[int] = Counter()

    async def hosts(self) -> list[placer.Host]:
        return [placer.Host("two", {0: 1 << 30, 1: 1 << 30}, self.given.copy())]

    async def submit(self, order: placer.Order) -> None:
        await asyncio.sleep(0.1)
        self.given.update(dict.fromkeys(order.cards, order.quota))


async def test_two_that_are_launched_at_once_are_given_two_cards(waiting: Container) -> None:
    await query(Container.objects.update, gpu_memory=900 << 20)
    fields = {"name": "b", "image": "local", "handed": "", "gpu_memory": 900 << 20}
    other = await query(Container.objects.create, owner=waiting.owner, node=waiting.node, **fields)
    store, swarm = Store("manager", "us"), Slow()
    await store.open({}, {})
    dispatcher = Dispatcher(swarm, ANY, store)  # type: ignore[arg-type]
    rows = [await query(Container.objects.select_related("owner").get, pk=row.pk) for row in (waiting, other)]
    await asyncio.gather(*(dispatcher.launch(row, None) for row in rows))
    await store.close()
    assert swarm.given == {0: 900 << 20, 1: 900 << 20}


async def test_swarm_gives_nothing_to_a_node_that_was_drained_and_then_removed(transactional_db: None) -> None:
    """Its scheduler has no rights any more: what came to it would fail there."""
    store = Store("manager", "us")
    await store.open({}, {})
    made = await query(Node.objects.create, name="gone")
    assert not (await query(pending_placements.drained))["gone"]
    await query(Node.objects.filter(pk=made.pk).update, drained_at=timezone.now())
    assert (await query(pending_placements.drained))["gone"]
    await query(nodes.expel, "root", "gone")
    assert (await query(pending_placements.drained))["gone"]
    await store.close()


async def test_kill_of_one_that_has_come_to_a_node_is_that_nodes_to_carry_out(host: Host) -> None:
    """It was asked of the manager a moment before, and was answered with "has ended" while the container ran on."""
    other = await query(Node.objects.create, name="other")
    owner = await query(User.objects.create, username="eve")
    fields = {"name": "a", "owner": owner, "image": "local", "node": other, "mount": "there"}
    container = await query(Container.objects.create, **fields)
    asked = {"kind": Command.Kind.KILL, "container": container, "node_id": host.up.store.here}
    command = await query(Command.objects.create, **asked)
    host.up.commands.wake()
    async with asyncio.timeout(PATIENCE):
        while (found := await query(Command.objects.get, pk=command.pk)).node_id != other.pk:
            assert found.done_at is None, found.message
            await asyncio.sleep(0.02)
    await host.stop()
    assert (await query(Command.objects.get, pk=command.pk)).done_at is None


class Unanswered(Slow):
    """A host has what it is given before it answers."""

    async def submit(self, order: placer.Order) -> None:
        self.given.update(dict.fromkeys(order.cards, order.quota))
        await asyncio.Event().wait()


async def test_kill_of_a_launch_that_a_node_has_before_the_swarm_has_answered_is_that_nodes(host: Host) -> None:
    """The launch was broken off here, and its record ended, while its program ran there for ever."""
    swarm = Unanswered()
    host.up.commands._dispatcher = Dispatcher(swarm, ANY, host.up.store)  # type: ignore[arg-type]
    other = await query(Node.objects.create, name="other")
    owner = await query(User.objects.create, username="eve")
    fields = {"name": "a", "image": "local", "node_id": host.up.store.here, "gpu_memory": 900 << 20}
    container = await query(Container.objects.create, owner=owner, **fields)
    asked = {"container": container, "node_id": host.up.store.here}
    launch = await query(Command.objects.create, kind=Command.Kind.LAUNCH, **asked)
    host.up.commands.wake()
    await eventually(lambda: swarm.given)
    await query(Container.objects.filter(pk=container.pk).update, node=other, mount="there")
    kill = await query(Command.objects.create, kind=Command.Kind.KILL, **asked)
    host.up.commands.wake()
    passed_on = Command.objects.filter(pk=kill.pk, node=other)
    await _until(passed_on.exists)
    await host.stop()
    assert (await query(Command.objects.get, pk=kill.pk)).done_at is None
    assert (await query(Command.objects.get, pk=launch.pk)).message == "A node has it."
    assert (await query(Container.objects.get, pk=container.pk)).finished_at is None


async def test_launch_that_a_node_has_is_not_refused_for_a_database_that_is_away_when_it_is_asked(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a network fails: the Swarm has it, and cannot say so. It was recorded as ended, and ran there."""
    other = await query(Node.objects.create, name="other")
    change = Dispatcher._change

    class Fails(Slow):
        async def submit(self, order: placer.Order) -> None:
            monkeypatch.setattr(Dispatcher, "_change", away)
            await query(Container.objects.filter(pk=order.id).update, node=other, mount="there")
            raise EngineError("The Swarm has no leader.")

    async def away(*_: Any, **__: Any) -> bool:
        monkeypatch.setattr(Dispatcher, "_change", change)
        raise OperationalError("the server is away")

    host.up.commands._dispatcher = Dispatcher(Fails(), ANY, host.up.store)  # type: ignore[arg-type]
    owner = await query(User.objects.create, username="eve")
    fields = {"name": "a", "image": "local", "node_id": host.up.store.here, "gpu_memory": 900 << 20}
    container = await query(Container.objects.create, owner=owner, **fields)
    asked = {"kind": Command.Kind.LAUNCH, "container": container, "node_id": host.up.store.here}
    answer = await host.answer(await query(Command.objects.create, **asked))
    await host.stop()
    assert (answer.outcome, answer.message) == ("done", "A node has it.")
    assert (await query(Container.objects.get, pk=container.pk)).finished_at is None


async def test_second_kill_of_one_that_waits_for_a_node_is_answered(host: Host) -> None:
    """Both were taken at once; the second found it ended by the first, and was open for ever."""
    taking_back = asyncio.Event()

    class Hesitates(Swarm):
        async def take_back(self, id_: str) -> None:
            await taking_back.wait()

    host.up.commands._dispatcher = Dispatcher(Hesitates(), ANY, host.up.store)  # type: ignore[arg-type]
    owner = await query(User.objects.create, username="eve")
    fields = {"name": "a", "image": "local", "node_id": host.up.store.here, "engine": "swarm", "handed": "key"}
    container = await query(Container.objects.create, owner=owner, **fields)
    asked = {"kind": Command.Kind.KILL, "container": container, "node_id": host.up.store.here}
    kills = [await query(Command.objects.create, **asked) for _ in range(2)]
    host.up.commands.wake()
    await _until(AllocationEvent.objects.filter(kind="killed").exists)
    taking_back.set()
    for kill in kills:
        await host.answer(kill)
    await host.stop()
    assert [kind for kind, _ in await query(_events)] == ["killed", "ended"]


async def test_pause_of_one_that_waits_for_a_node_is_refused_as_that(host: Host) -> None:
    """And not as of one that has ended."""
    host.up.commands._dispatcher = Dispatcher(Swarm(), ANY, host.up.store)  # type: ignore[arg-type]
    owner = await query(User.objects.create, username="eve")
    fields = {"name": "a", "owner": owner, "image": "local", "node_id": host.up.store.here, "engine": "swarm"}
    answer = await host.command("pause", await query(Container.objects.create, **fields))
    assert (answer.outcome, answer.code) == ("refused", "not_running")
    assert answer.message.startswith('"a" waits for a node of the Swarm.')


async def test_reason_that_a_record_has_no_room_for_is_written_once(
    waiting: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Swarm of many nodes says of each why it has no room."""
    store, written = Store("manager", "us"), list[str]()
    await store.open({}, {})
    change = Dispatcher._change

    async def and_noted(self: Dispatcher, id_: str, **fields: Any) -> bool:
        written.append(fields["queue_reason"])
        return await change(self, id_, **fields)

    monkeypatch.setattr(Dispatcher, "_change", and_noted)
    dispatcher = Dispatcher(Swarm("no suitable node " * 100), ANY, store)  # type: ignore[arg-type]
    for _ in range(3):
        await dispatcher._look()
    await store.close()
    assert [len(said) for said in written] == [500]
    assert (await query(Container.objects.get, pk=waiting.pk)).queue_reason == written[0]


async def test_host_that_speaks_for_a_second_swarm_is_refused_until_the_first_does_not_any_more(
    waiting: Container,
) -> None:
    """It would find none of the first one's launches in its own Swarm, and end them as taken away."""
    first, second = Store("manager", "us"), Store("other", "them")
    await first.open({}, {})
    await second.open({}, {})
    assert await first.speak_for("swarm a") == ""
    why_not = await second.speak_for("swarm b")
    assert 'This host and "manager" speak for two different Swarms' in why_not
    assert "GPUSHARE_ENGINE=docker" in why_not
    assert await second.speak_for("swarm a") == ""  # another manager of the same
    assert await first.speak_for("swarm b") != ""
    second.node(placer="")
    await second.flush()
    assert await first.speak_for("swarm b") == ""  # its host has left the one, and joined the other
    reported = await query(lambda: dict(Node.objects.values_list("name", "placer")))
    assert reported == {"manager": "swarm b", "other": ""}
    await first.close()
    await second.close()

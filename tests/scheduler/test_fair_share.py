"""What people have had and are due, between the core and the records: over restarts, hosts, forgiveness, odd clocks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import OperationalError

from scheduler import store as stores
from scheduler.containers.forecasts import foresee
from scheduler.core import arbiter
from scheduler.core.effects import Effect, Refused, TakeBack
from scheduler.core.events import (
    ContainerAdded,
    ContainerEnded,
    ContainerPaused,
    Event,
    GpuSeen,
    Needed,
    Returned,
    SessionOpened,
    Ticked,
)
from scheduler.core.people.ledger import GIB_HOUR, HALF_LIFE, accounts
from scheduler.core.people.ratios import ratios
from scheduler.core.state import State
from scheduler.gpus import Card
from scheduler.monitors.fair_share import FairShare
from scheduler.store import Store, usage, write_behind
from scheduler.store.journal import AsyncJournal
from tests.support.host import query
from tests.support.inprocess.host import InProcess
from tests.support.machine import make_gpu, make_node
from web.models import Gpu, GroupShares, PersonShares, Usage, UsageHour

GIB, HOUR, NOON = 2**30, 3600.0, 1_800_000_000.0
CARD = Card("GPU-a", 0, "Simulated card", 10 * GIB, 10 * GIB, 0, simulated=True)
Accounts = dict[str, tuple[float, float]]


class Core:
    """The arbiter on a clock of its own, with no headroom to take back: what FairShare wants of a broker."""

    def __init__(self, gpu: str = "GPU-a") -> None:
        self.state, self.time, self.gpu = State(), 100.0, gpu
        self.live_containers: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.planned: dict[str, Any] = {}
        self.tell(GpuSeen(self.time, gpu, 10 * GIB))

    def now(self) -> float:
        return self.time

    def tell(self, event: Event) -> list[Effect]:
        self.state, effects = arbiter.handle(self.state, event)
        for effect in list(effects):
            if isinstance(effect, TakeBack):
                self.tell(Returned(self.time, effect.gpu, {}, all=True))
        return list(effects)

    def ask(self, event: Event) -> Refused | None:
        return next((effect for effect in self.tell(event) if isinstance(effect, Refused)), None)

    def asks(self, person: str, size: int) -> None:
        session = len(self.state.sessions) + 1
        self.tell(ContainerAdded(self.time, f"of-{person}", {self.gpu: size}, owner=person))
        self.tell(SessionOpened(self.time, session, f"of-{person}"))
        self.tell(Needed(self.time, session, 1, self.gpu, size))

    def rounded(self) -> Accounts:
        """Person → had, due in whole hundredths of GiB·hours."""
        its = accounts(self.state.people, self.time).get(self.gpu, {})
        return {name: (round(each.had / GIB_HOUR, 2), round(each.due / GIB_HOUR, 2)) for name, each in its.items()}


class Host:
    """One after the other: schedulers of one host, on a wall clock that the test sets."""

    def __init__(self, node: str = "here", card: Card = CARD) -> None:
        self.wall, self.node, self.cards = NOON, node, [card]

    async def start(self) -> tuple[Core, FairShare]:
        self.store, self.core = Store(self.node, f"scheduler of {self.node}"), Core(self.cards[0].uuid)
        await self.store.open({card.uuid: card for card in self.cards}, {})
        self.fair: Any = FairShare(self.core, self.store)  # type: ignore[arg-type]
        await self.fair.start()
        return self.core, self.fair

    def passes(self, seconds: float) -> None:
        self.core.time += seconds
        self.wall += seconds

    async def written(self) -> None:
        self.fair.write()
        await self.store.flush()

    async def killed(self) -> None:
        if self.store.journal:
            await self.store.journal.close()
        await self.store.database.close()


@pytest.fixture
async def host(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    host = Host()
    monkeypatch.setattr(usage, "wall", lambda: host.wall)
    yield host
    await host.killed()


async def an_hour_of_waiting(host: Host) -> Core:
    """ada holds 8 GiB of 10, and bob waits for 8 for an hour."""
    core, _ = await host.start()
    core.asks("ada", 8 * GIB)
    core.asks("bob", 8 * GIB)
    host.passes(HOUR)
    assert core.rounded() == {"ada": (7.94, 3.97), "bob": (0.0, 3.97)}  # 8 and 4, a little decayed
    return core


async def test_the_ledger_is_kept_over_a_restart_and_a_minute_is_lost_at_most(host: Host) -> None:
    core = await an_hour_of_waiting(host)
    await host.written()
    before = core.rounded()
    host.passes(59)  # not written any more
    await host.killed()
    core, _ = await host.start()
    assert core.rounded() == before  # but for the decay of a minute
    host.wall += HALF_LIFE
    await host.killed()
    core, _ = await host.start()
    assert core.rounded() == {"ada": (3.97, 1.99), "bob": (0.0, 1.99)}


async def test_hours_add_up_what_was_had_also_over_a_restart(host: Host) -> None:
    await an_hour_of_waiting(host)
    await host.written()
    await host.killed()
    core, _ = await host.start()
    core.asks("ada", 8 * GIB)
    core.asks("bob", 8 * GIB)
    host.wall -= HOUR  # into the same hour: a clock that is set back takes nothing away
    host.passes(HOUR)
    await host.written()
    hours = await query(lambda: list(UsageHour.objects.order_by("person", "hour").values_list("person", "had", "due")))
    assert [(person, round(had), round(due)) for person, had, due in hours] == [("ada", 16, 8), ("bob", 0, 8)]


@pytest.mark.parametrize("wrong", [-30 * 86400.0, 5 * HOUR])
async def test_a_clock_that_is_set_neither_loses_nor_makes_usage(host: Host, wrong: float) -> None:
    core = await an_hour_of_waiting(host)
    host.wall += wrong
    await host.written()
    assert core.rounded() == {"ada": (7.94, 3.97), "bob": (0.0, 3.97)}
    await host.killed()
    host.wall -= max(0.0, wrong)  # put right: the row is of the future
    core, _ = await host.start()
    assert core.rounded() == {"ada": (7.94, 3.97), "bob": (0.0, 3.97)}


async def test_shares_groups_and_the_usage_of_other_hosts_reach_the_core(host: Host) -> None:
    await query(_a_group_and_another_host)
    core, fair = await host.start()
    tree, elsewhere = core.state.people.tree, core.state.people.elsewhere
    assert (tree.groups, tree.shares, tree.own) == ({"ada": "vision"}, {"vision": 2.0}, {"ada": 100_000.0})
    assert elsewhere.capacity == 20 * GIB
    assert {name: round(each.had / GIB_HOUR, 2) for name, each in elsewhere.accounts.items()} == {"ada": 5, "eve": 0}
    await query(lambda: GroupShares.objects.all().delete())
    await fair._hear()
    assert core.state.people.tree.shares == {}


def _a_group_and_another_host() -> None:
    """With a row of it that is a half-life old, one that does not know yet that it was forgiven, and nonsense."""
    ada, bob = (User.objects.create(username=name) for name in ("ada", "bob"))
    group = Group.objects.create(name="vision")
    group.user_set.add(ada)
    GroupShares.objects.create(group=group, shares=2)
    PersonShares.objects.create(user=ada, shares=1000, boost=100, boost_until=datetime(2100, 1, 1, tzinfo=UTC))
    PersonShares.objects.create(user=bob, forgiven=1)
    other = make_gpu(make_node(name="other"), index=7, capacity=20 * GIB)
    ago = datetime.fromtimestamp(NOON - HALF_LIFE, UTC)
    for person, had in (("ada", 10.0), ("bob", 10.0), ("eve", -10.0)):
        Usage.objects.create(gpu=other, person=person, had=had, due=0.0, at=ago)


async def test_two_schedulers_on_one_database_add_up_what_a_person_had(host: Host) -> None:
    other = Host("there", replace(CARD, uuid="GPU-b"))
    try:
        for each in (host, other):
            await an_hour_of_waiting(each)
            await each.written()
        for each in (host, other):
            await each.fair._hear()
            elsewhere = each.core.state.people.elsewhere
            its = {name: round(one.had / GIB_HOUR, 1) for name, one in elsewhere.accounts.items()}
            assert (its, elsewhere.capacity) == ({"ada": 7.9, "bob": 0.0}, 10 * GIB)
            known = ratios(each.core.state, each.core.time)
            assert {name: round(one.had / GIB_HOUR, 1) for name, one in known.accounts.items()}["ada"] == 15.9
    finally:
        await other.killed()


async def test_forgiven_usage_is_zero_at_once_and_after_a_restart(host: Host) -> None:
    core = await an_hour_of_waiting(host)
    await host.written()
    await query(lambda: PersonShares.objects.create(user=User.objects.create(username="ada"), forgiven=1))
    await host.fair._hear()
    assert core.rounded().get("ada", (0.0, 0.0)) == (0.0, 0.0)
    await host.written()
    row = await query(lambda: Usage.objects.get(person="ada"))
    assert (round(row.had, 2), row.forgiven) == (0.0, 1)
    await host.killed()
    core, _ = await host.start()
    assert core.rounded() == {"bob": (0.0, 3.97)}


async def test_what_was_forgiven_shows_no_ratio_of_before_though_nothing_else_is_known_of_the_person(
    host: Host,
) -> None:
    core = await an_hour_of_waiting(host)
    core.tell(ContainerEnded(core.time, "of-ada"))
    await host.written()
    assert await query(lambda: Usage.objects.get(person="ada").ratio) > 1.2
    await query(lambda: PersonShares.objects.create(user=User.objects.create(username="ada"), forgiven=1))
    await host.fair._hear()
    await host.written()
    assert await query(lambda: Usage.objects.get(person="ada").ratio) == 1.0


async def test_a_card_that_was_elsewhere_when_usage_was_forgiven_forgives_it_once(host: Host) -> None:
    """Its row is of before; what the person has had since, on another card of this host, stays."""
    host.cards.append(replace(CARD, uuid="GPU-b", index=1))
    await host.start()
    await query(_forgiven_while_a_card_was_away)
    await host.killed()
    core, _ = await host.start()
    assert core.rounded() == {"ada": (10.0, 5.0)}


def _forgiven_while_a_card_was_away() -> None:
    PersonShares.objects.create(user=User.objects.create(username="ada"), forgiven=1)
    at = datetime.fromtimestamp(NOON, UTC)
    for gpu, forgiven, had in (("GPU-a", 1, 10.0), ("GPU-b", 0, 30.0)):
        its = {"gpu": Gpu.objects.get(uuid=gpu), "person": "ada", "at": at}
        Usage.objects.create(**its, had=had, due=had / 2, forgiven=forgiven)


async def test_what_a_person_is_due_now_is_shown_while_somebody_waits(host: Host) -> None:
    await an_hour_of_waiting(host)
    await host.written()
    shown = await query(lambda: {row.person: (row.ratio > 1, row.share) for row in Usage.objects.all()})
    assert shown == {"ada": (True, 5 * GIB), "bob": (False, 5 * GIB)}


async def test_a_wait_that_a_pause_holds_up_is_no_wait_for_which_a_share_is_due(host: Host) -> None:
    core = await an_hour_of_waiting(host)
    core.tell(ContainerPaused(core.time, "of-bob"))
    await host.written()
    assert await query(lambda: set(Usage.objects.values_list("share", flat=True))) == {None}


async def test_a_launch_preview_says_who_is_before_a_person(host: Host) -> None:
    core = await an_hour_of_waiting(host)
    core.tell(Ticked(core.time))
    asked = {"gpu_memory": 4 * GIB, "gpus": ["GPU-a"], "owner": "carl"}
    _, says = foresee(core, asked)  # type: ignore[arg-type]
    assert says.startswith("You hold nothing there. bob is before you; your job is next after that person. GPU GPU-a")
    _, says = foresee(core, {**asked, "owner": "bob"})  # type: ignore[arg-type]
    assert says.startswith("You hold nothing there. Nobody else is before you.")


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Stores keep what they cannot write, as where the database is a server; `opened()`: it is away from now on."""
    monkeypatch.setattr(stores, "_open_journal", lambda: AsyncJournal(tmp_path / "journal", 1 << 20))

    def away(*_: Any) -> None:
        raise OperationalError("the server is away")

    def begin() -> None:
        monkeypatch.setattr(write_behind, "write_batch", away)
        monkeypatch.setattr(stores, "_open", away)
        monkeypatch.setattr(Store, "may_start_alone", staticmethod(lambda: True))

    return begin


async def test_a_start_without_the_database_goes_on_with_what_this_host_kept(
    opened: Callable[[], None], host: Host
) -> None:
    await an_hour_of_waiting(host)
    await host.written()
    opened()
    host.passes(HOUR)
    with pytest.raises(OperationalError):
        await host.written()
    before = host.core.rounded()
    await host.killed()
    core, _ = await host.start()
    assert core.rounded() == before


async def test_usage_is_written_each_minute_also_while_the_database_does_not_answer(inprocess: InProcess) -> None:
    """As over a network that swallows what is sent: a scheduler that is killed meanwhile has lost a minute at most."""
    inprocess.up.store.usage.given = asyncio.Event().wait  # type: ignore[assignment]
    inprocess.up.fair_share.wake()
    for state in ("running", "suspended"):
        made = await inprocess.launch("workload", "--bytes", "3GiB", "--hold", "600", gpu_memory=4 * GIB)
        await inprocess.until(made, state)
    await inprocess.passes(90)
    assert await inprocess.eventually(lambda: query(lambda: Usage.objects.filter(had__gt=0).exists()))

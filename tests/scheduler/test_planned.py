"""Planned launches begin when their conditions hold and their whole quota is free: on virtual time, with real rows."""

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from scheduler import clock
from scheduler.containers.forecasts import foresee
from scheduler.core.planned.progress import Attempt, Progress, as_json, begun
from scheduler.store import planned_runs
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import Process
from web.models import Allowance, Container, Planned
from web.models.states import LOST
from web.services import planning

HOLDS = ["workload", "--bytes", "3GiB", "--hold", "600"]
NAP = ["sleep", "20"]


async def fails_at_first(process: Process, again: str = "") -> int:
    """With exit code 3 unless the test sets another."""
    return int(again or 3)


async def plan(host: InProcess, owner: str = "ada", **fields: Any) -> Planned:
    """As REST does it. The words of a command may be programs of the test's own."""

    def make() -> Planned:
        user, _ = User.objects.get_or_create(username=owner)
        spec = {"image": "local", "gpu_memory": GIB, "command": NAP, "queue": True, **fields}
        made = planning.launch(user, spec)
        assert isinstance(made, Planned)
        return made

    made = await query(make)
    host.up.planner.wake()
    return made


async def row(planned: Planned) -> Planned:
    return await query(Planned.objects.select_related("owner").get, pk=planned.pk)


async def runs(planned: Planned) -> list[Container]:
    return await query(lambda: list(Container.objects.filter(planned=planned).order_by("created_at")))


async def steer(host: InProcess, what: Callable[..., Any], planned: Planned, **fields: Any) -> Any:
    done = await query(lambda: what(planned.owner, planned, **fields))
    host.up.planner.wake()
    return done


async def ended(host: InProcess, planned: Planned) -> Planned:
    async def over() -> Planned | None:
        now = await row(planned)
        return now if now.finished_at else None

    return await host.eventually(over, within=150)  # type: ignore[return-value]


def most_at_once(its: list[Container]) -> int:
    """How many of them ran at the same time."""
    marks = sorted(
        [(each.started_at, 1) for each in its] + [(each.finished_at, -1) for each in its if each.finished_at]
    )
    count = most = 0
    for _, change in marks:
        count += change
        most = max(most, count)
    return most


async def test_launch_begins_when_its_whole_quota_is_free_and_takes_nothing_before(inprocess: InProcess) -> None:
    holder = await inprocess.launch(*HOLDS, gpu_memory=4 * GIB, ttl_seconds=3600.0)
    await inprocess.says(holder, "holding")
    first = await plan(inprocess, gpu_memory=3 * GIB, name="first")
    second = await plan(inprocess, gpu_memory=3 * GIB, name="second")

    async def shown() -> bool:
        return (await row(second)).place == 2

    await inprocess.eventually(shown)
    by = r"At \d\d:\d\d UTC at the latest, by the time limits of those that run\."
    assert re.fullmatch(r"Starts when 3 GiB is free on one GPU \(now 1\.\d+ GiB\)\. " + by, (await row(first)).waits)
    assert await runs(first) == []
    forecast, _ = foresee(inprocess.up.broker, {"gpu_memory": 3 * GIB, "owner": "eve"})
    assert forecast["behind"] == [str(holder.pk)]
    assert "first waits already" in forecast["message"]
    await inprocess.command("kill", holder)
    await inprocess.eventually(lambda: len(inprocess.up.broker.live_containers) == 1)
    await inprocess.passes(10)
    assert [each.name for each in await runs(first)] == ["first"]
    assert await runs(second) == []  # the first holds nothing yet, and all of its quota is its own
    assert (await ended(inprocess, second)).ended == "ok"
    assert (await runs(second))[0].started_at >= (await runs(first))[0].finished_at  # type: ignore[operator]


async def test_why_it_waits_is_shown_though_the_database_did_not_take_it_at_first(
    inprocess: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, failures = planned_runs.show, iter([OperationalError("database is locked")])

    def failing(places: Any) -> None:
        for failure in failures:
            raise failure
        show(places)

    monkeypatch.setattr(planned_runs, "show", failing)
    await inprocess.says(await inprocess.launch(*HOLDS, gpu_memory=4 * GIB), "holding")
    planned = await plan(inprocess, gpu_memory=3 * GIB)

    async def why() -> str:
        return (await row(planned)).waits

    assert (await inprocess.eventually(why)).startswith("Starts when 3 GiB is free")


async def test_child_starts_at_once_when_its_parent_has_ended(inprocess: InProcess) -> None:
    parent = await inprocess.launch(*NAP, name="parent")
    child = await plan(inprocess, after=["parent"])
    await ended(inprocess, child)
    (run,) = await runs(child)
    parent = await inprocess.get(parent)
    assert timedelta(0) <= run.started_at - parent.finished_at <= timedelta(seconds=1)  # type: ignore[operator]


async def test_sweep_keeps_at_once_which_changes_while_it_runs(inprocess: InProcess) -> None:
    sweep = await plan(inprocess, name="lr", sweep="lr=0.1,0.2,0.3,0.4,0.5,0.6", at_once=2, gpu_memory=GIB // 8,
                       command=["sh", "-c", "echo {i} {value} $LR; sleep 20"], env={"LR": "{lr}"})  # fmt: skip
    await inprocess.eventually(lambda: len(inprocess.up.broker.live_containers) == 2)
    await inprocess.passes(1)
    assert len(await runs(sweep)) == 2
    await steer(inprocess, planning.edit, sweep, at_once=3)
    assert (await ended(inprocess, sweep)).ended == "ok"
    its = await runs(sweep)
    assert [each.name for each in its] == [f"lr-{number:04d}" for number in range(1, 7)]
    assert most_at_once(its) == 3
    assert [each.command[-1] for each in its][2] == "echo 3 0.3 $LR; sleep 20"
    assert its[2].environment == {"LR": "0.3"}


@pytest.mark.parametrize(("retries", "end"), [(1, "failed"), (2, "failed")])
async def test_run_that_fails_is_tried_again_after_a_pause(inprocess: InProcess, retries: int, end: str) -> None:
    inprocess.engine.programs["fails_at_first"] = fails_at_first
    planned = await plan(inprocess, name="job", command=["fails_at_first"], retries=retries, retry_pause=30)
    never = await plan(inprocess, name="never", after=["job"])
    last = await plan(inprocess, name="last", after=["never"])
    cleanup = await plan(inprocess, name="cleanup", after=["job:any"])
    assert (await ended(inprocess, planned)).ended == end
    its = await runs(planned)
    assert [each.name for each in its] == ["job", "job.2", "job.3"][: retries + 1]
    assert its[1].started_at - its[0].finished_at >= timedelta(seconds=30)  # type: ignore[operator]
    assert (await ended(inprocess, never)).reason == 'It was to begin after "job" had ended well, and that failed.'
    assert (await ended(inprocess, last)).ended == "not_started"
    assert (await ended(inprocess, cleanup)).ended == "ok"

    made = await steer(inprocess, planning.again, await row(planned))
    assert [each.name for each in made] == ["job", "never", "last"]
    assert made[1].after[0]["id"] == str(made[0].pk)
    assert (await ended(inprocess, made[2])).ended == "not_started"


async def test_what_a_person_kills_is_not_tried_again(inprocess: InProcess) -> None:
    planned = await plan(inprocess, name="job", retries=3)
    await inprocess.eventually(lambda: len(inprocess.up.broker.live_containers) == 1)
    await inprocess.command("kill", (await runs(planned))[0])
    assert (await ended(inprocess, planned)).ended == "failed"
    assert len(await runs(planned)) == 1


async def test_run_that_is_lost_with_another_node_is_tried_again_here(inprocess: InProcess) -> None:
    planned = await plan(inprocess, name="job", retries=1, retry_pause=1, hold=True)
    its = {"owner": planned.owner, "name": "job", "image": "local", "planned": planned, "planned_run": 1,
           "planned_attempt": 1, "started_at": clock.now()}  # fmt: skip
    there = await query(lambda: Container.objects.create(**its))
    progress = as_json(begun(Progress(), 1, Attempt(str(there.pk), 1)))
    await query(Planned.objects.filter(pk=planned.pk).update, progress=progress, started_at=clock.now())
    await steer(inprocess, planning.release, planned)
    await inprocess.passes(5)
    assert await runs(planned) == [there]
    await query(Container.objects.filter(pk=there.pk).update, finished_at=clock.now(), reason=LOST)
    assert (await ended(inprocess, planned)).ended == "ok"
    assert [each.name for each in await runs(planned)] == ["job", "job.2"]


async def test_begins_no_earlier_than_its_time_nor_while_it_is_held(inprocess: InProcess) -> None:
    at = clock.now() + timedelta(hours=1)
    planned = await plan(inprocess, begin_at=at.isoformat(), hold=True)
    await inprocess.passes(1800)
    await steer(inprocess, planning.release, planned)
    await inprocess.passes(1700)
    assert await runs(planned) == []
    assert (await ended(inprocess, planned)).ended == "ok"
    assert timedelta(0) <= (await runs(planned))[0].started_at - at < timedelta(seconds=1)  # type: ignore[operator]


async def test_cancelled_sweep_starts_nothing_more_and_ends_with_what_runs(inprocess: InProcess) -> None:
    sweep = await plan(inprocess, sweep="9", at_once=2)
    await inprocess.eventually(lambda: len(inprocess.up.broker.live_containers) == 2)
    await steer(inprocess, planning.cancel, sweep)
    done = await ended(inprocess, sweep)
    assert (done.ended, done.reason, len(await runs(sweep))) == ("cancelled", "Cancelled by ada.", 2)


async def test_what_was_promised_to_one_that_has_begun_stays_its_own_over_a_failure_of_the_database(
    inprocess: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await inprocess.launch(*HOLDS, gpu_memory=4 * GIB)
    await inprocess.says(holder, "holding")
    first = await plan(inprocess, gpu_memory=4 * GIB, name="first", command=HOLDS)
    await inprocess.eventually(lambda: inprocess.up.broker.state.waiting)
    later, _ = await inprocess.start_launch(*HOLDS, gpu_memory=4 * GIB)
    await inprocess.until(later, "suspended")
    goes_on, launch, begun = asyncio.Event(), inprocess.up.launcher.launch, asyncio.Event()

    async def slow(*arguments: Any) -> None:
        begun.set()
        await goes_on.wait()
        await launch(*arguments)

    monkeypatch.setattr(inprocess.up.launcher, "launch", slow)
    await inprocess.command("kill", holder)
    await asyncio.wait_for(begun.wait(), 60)
    with monkeypatch.context() as patch:
        failures = []

        def fails(*_: Any) -> None:
            failures.append("locked")
            raise OperationalError("database is locked")

        patch.setattr(planned_runs, "is_unread", fails)
        await inprocess.eventually(lambda: len(failures) > 1)  # what the first of them calls off has been by then
    assert (await inprocess.get(later)).state == "suspended"
    goes_on.set()
    (run,) = await runs(first)
    await inprocess.eventually(lambda: inprocess.up.broker.state.containers[str(run.pk)].leased)


async def test_who_may_have_nothing_more_running_keeps_no_memory_from_others(inprocess: InProcess) -> None:
    holder = await inprocess.launch(*HOLDS, gpu_memory=4 * GIB)
    await inprocess.says(holder, "holding")
    small = await plan(inprocess, "eve", gpu_memory=GIB // 8, command=["sleep", "900"])
    await query(lambda: Allowance.objects.create(user=small.owner, containers=1))
    await inprocess.eventually(lambda: len(inprocess.up.broker.live_containers) == 2)
    large = await plan(inprocess, "eve", gpu_memory=4 * GIB)
    await inprocess.passes(5)
    assert inprocess.up.broker.state.waiting == ()
    assert "limit of live containers is 1" in (await row(large)).waits


async def test_person_has_no_more_running_than_allowed_and_the_rest_waits(inprocess: InProcess) -> None:
    sweep = await plan(inprocess, sweep={"count": 3}, gpu_memory=GIB // 8, hold=True)
    await query(lambda: Allowance.objects.create(user=sweep.owner, containers=1))
    await steer(inprocess, planning.release, sweep)
    other = await plan(inprocess, "bob", gpu_memory=GIB // 8)
    assert (await ended(inprocess, other)).ended == "ok"
    await ended(inprocess, sweep)
    assert most_at_once(await runs(sweep)) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda planned: User.objects.filter(username="ada").update(is_active=False), "account is disabled"),
        (lambda planned: Allowance.objects.create(user=planned.owner, gpu_memory=GIB // 2), "may be at most 512 MiB"),
    ],
)
async def test_what_can_never_start_any_more_ends_soon_with_its_reason(
    inprocess: InProcess, change: Callable[[Planned], Any], reason: str
) -> None:
    held = await plan(inprocess, hold=True)
    child = await plan(inprocess, after=[str(held.pk)])
    await query(change, held)
    if "at most" in reason:
        await steer(inprocess, planning.release, held)
    before = clock.now()
    done = await ended(inprocess, child)
    assert (done.ended, clock.now() - before <= timedelta(seconds=5)) == ("not_started", True)
    assert reason in (await row(held)).reason


async def test_people_take_turns(inprocess: InProcess) -> None:
    """Whoever plans a hundred first does not have the card for a hundred runs."""
    first = await plan(inprocess, sweep={"count": 5}, at_once=1, gpu_memory=4 * GIB)
    await inprocess.eventually(lambda: len(inprocess.up.broker.live_containers) == 1)
    second = await plan(inprocess, "bob", sweep={"count": 2}, at_once=1, gpu_memory=4 * GIB)
    await ended(inprocess, first)
    order = await query(lambda: list(Container.objects.order_by("created_at").values_list("planned", flat=True)))
    assert order[:4] == [first.pk, second.pk, first.pk, second.pk]  # the one that has waited for longest


@pytest.mark.parametrize("crash", [False, True])
async def test_restart_loses_nothing_and_starts_nothing_twice(inprocess: InProcess, crash: bool) -> None:
    sweep = await plan(inprocess, name="s", sweep={"count": 4}, at_once=2, gpu_memory=GIB // 8)
    child = await plan(inprocess, after=["s"])
    await inprocess.eventually(lambda: len(inprocess.up.broker.live_containers) == 2)
    await (inprocess.crash() if crash else inprocess.stop())
    await asyncio.sleep(25)  # virtual: two of them end without a scheduler
    await inprocess.start()
    assert (await ended(inprocess, child)).ended == "ok"
    its = await runs(sweep)
    assert [each.name for each in its] == ["s-0001", "s-0002", "s-0003", "s-0004"]
    assert most_at_once(its) <= 2

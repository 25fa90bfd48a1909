"""People change a planned launch in the moment in which the scheduler starts it, or ends it for good."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from scheduler import clock
from scheduler.core.planned.progress import End
from scheduler.store import planned_runs
from tests.scheduler.test_planned import ended, fails_at_first, plan, row, runs, steer
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from web.models import Gpu, Planned
from web.services import planning

TOMORROW = timedelta(days=1)


def change(how: Callable[..., Any], planned: Planned, **fields: Any) -> Planned:
    """Without a hint."""
    return how(Planned.objects.select_related("owner").get(pk=planned.pk).owner, planned, **fields)


async def test_what_was_changed_just_now_neither_starts_nor_ends_by_what_it_was_before(inprocess: InProcess) -> None:
    other = await plan(inprocess, name="other", hold=True)
    changes: list[Callable[[Planned], Any]] = [
        lambda planned: change(planning.edit, planned, begin_at=(clock.now() + TOMORROW).isoformat()),
        lambda planned: change(planning.edit, planned, after=[str(other.pk)]),
        lambda planned: change(planning.edit, planned, priority=1),
        lambda planned: change(planning.hold, planned),
        lambda planned: change(planning.cancel, planned),
    ]
    planned = [await plan(inprocess, hold=True) for _ in changes]
    await inprocess.passes(3)
    await inprocess.stop()  # from here on, its moves are made one by one

    def race() -> None:
        gpus = list(Gpu.objects.values_list("uuid", flat=True))
        for each, make in zip(planned, changes, strict=True):
            Planned.objects.filter(pk=each.pk).update(held_at=None, unread=False)  # released, and read
            make(each)
            made = planned_runs.start(each.node_id, str(each.pk), (1, 1), gpus, clock.wall(), lambda: None)
            assert made is None
            assert planned_runs.finish(str(each.pk), "It never can.") is None

    await query(race)
    for each in planned:
        assert (await runs(each), (await row(each)).finished_at) == ([], None)


async def test_a_child_that_was_given_another_parent_as_the_first_one_failed_begins(
    inprocess: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    inprocess.engine.programs["fails_at_first"] = fails_at_first
    parent = await plan(inprocess, name="parent", command=["fails_at_first"], hold=True)
    child = await plan(inprocess, name="child", after=["parent"])
    await plan(inprocess, name="other", command=["sleep", "30"], gpu_memory=GIB // 8)
    real, changed = planned_runs.record, list[str]()

    def recorded(its: Any, now: float) -> Any:
        """Between the look at what people have changed and what follows from the end."""
        its = list(its)
        if End.FAILED in {end for *_, end in its}:
            change(planning.edit, child, after=["other"])
            changed.append("other")
        return real(its, now)

    monkeypatch.setattr(planned_runs, "record", recorded)
    await steer(inprocess, planning.release, parent)
    assert (await ended(inprocess, parent)).ended == "failed"
    assert (await ended(inprocess, child)).ended == "ok"
    assert changed == ["other"]


async def test_a_card_that_is_out_of_service_starts_nothing_and_says_so(inprocess: InProcess) -> None:
    (gpu,) = inprocess.up.broker.state.gpus
    planned = await plan(inprocess, hold=True)
    assert (await inprocess.command("drain-gpu", gpu=gpu, reason="new fans")).outcome == "done"
    await steer(inprocess, planning.release, planned)

    async def shown() -> bool:
        return (await row(planned)).waits.endswith("A GPU that it needs is out of service.")

    await inprocess.eventually(shown)
    assert await runs(planned) == []
    assert (await inprocess.command("undrain-gpu", gpu=gpu)).outcome == "done"
    assert (await ended(inprocess, planned)).ended == "ok"


async def test_time_in_which_a_person_held_it_back_is_no_waiting(inprocess: InProcess) -> None:
    held = await plan(inprocess, "bob", hold=True)
    later = await plan(inprocess, "bob", begin_at=(clock.now() + TOMORROW).isoformat(), gpu_memory=GIB // 2)
    await inprocess.passes(3600)
    await inprocess.stop()
    await query(change, planning.release, held)
    await query(lambda: change(planning.edit, later, begin_at=None))
    begins = [(await row(each)).begin_at for each in (held, later)]
    assert all(at is not None and timezone.now() - at < timedelta(minutes=10) for at in begins)

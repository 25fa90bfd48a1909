"""Each wait says what it is for: whose end, by when, or whom somebody has to resume."""

import re
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from tests.support.host import GIB, MIB, query
from tests.support.inprocess.host import InProcess
from web.models import Command, Container, ExpectedBy

HOLDS = ("workload", "--bytes", "3GiB", "--hold", "600")


async def says(host: InProcess, container: Container, words: str) -> Container:
    """The container as soon as its reason has these words in it."""

    async def said() -> Container | None:
        row = await host.get(container)
        return row if re.search(words, row.queue_reason) else None

    return await host.eventually(said)


async def holding(host: InProcess, name: str, **fields: Any) -> Container:
    container = await host.launch(*HOLDS, name=name, gpu_memory=4 * GIB, **fields)
    await host.says(container, "holding")
    return container


async def waiting(host: InProcess, name: str, **fields: Any) -> Container:
    container = await host.launch(*HOLDS, name=name, gpu_memory=4 * GIB, **fields)
    await host.until(container, "suspended")
    return container


async def test_not_only_the_first_in_line_learns_whose_end_lets_it_go_on(host: InProcess) -> None:
    holder = await holding(host, "holder")
    first = await waiting(host, "first")
    second, third = await waiting(host, "second"), await waiting(host, "third")
    await says(host, first, r"Next when holder ends\.$")
    await says(host, second, r"Goes on when holder and first have ended\.$")
    row = await says(host, third, r"Goes on when holder, first and second have ended\.$")
    assert (row.expected_at, row.expected_by) == (None, "")
    await host.command("kill", holder)
    # One of them may have got a piece of what came free, and with it the others' way.
    await says(host, second, r"(Next when first ends|Goes on when first and third have ended)\.$")
    await says(host, first, "^$")


async def test_who_has_to_be_resumed_and_who_paused_them_is_shown(host: InProcess) -> None:
    holder = await holding(host, "holder")
    waiter = await waiting(host, "waiter")

    def pause() -> Command:
        bob = User.objects.create(username="bob")
        return Command.objects.create(kind="pause", container=holder, issued_by=bob)

    command = await query(pause)
    host.up.commands.wake()
    await host.answer(command)
    await says(host, waiter, r"holder is paused by bob: resume it\.$")
    await host.command("resume", holder)
    await says(host, waiter, r"Next when holder ends\.$")


async def test_time_limits_say_by_when_at_the_latest(host: InProcess) -> None:
    await holding(host, "holder", ttl_seconds=600)
    row = await says(
        host, await waiting(host, "waiter", ttl_seconds=900), r"holder ends, at \d\d:\d\d UTC at the latest"
    )
    second = await says(host, await waiting(host, "second"), r"have ended, at \d\d:\d\d UTC at the latest\.$")
    row = await host.get(row)
    assert row.expected_by == second.expected_by == ExpectedBy.LIMITS
    assert row.expected_at is not None
    assert second.expected_at is not None
    assert timedelta(minutes=8) < row.expected_at - timezone.now() < timedelta(minutes=11)
    assert second.expected_at > row.expected_at


async def test_earlier_runs_of_the_same_job_make_an_estimate_and_others_do_not(host: InProcess) -> None:
    holder = await holding(host, "holder")
    await query(ran_before, holder, [600, 900, 1200])
    waiter = await waiting(host, "waiter")
    row = await says(
        host, waiter, r"Next when holder ends, at about \d\d:\d\d UTC: 3 earlier runs took 10 to 20 min\.$"
    )
    assert row.expected_by == ExpectedBy.EARLIER_RUNS
    assert row.expected_at is not None
    assert timedelta(minutes=13) < row.expected_at - timezone.now() < timedelta(minutes=16)


def ran_before(like: Container, seconds: list[float]) -> None:
    """Runs of the same job that ended well; and some that are no measure."""
    now = timezone.now()
    fields = {name: getattr(like, name) for name in ("owner", "image", "command", "gpu_memory")}
    for number, took in enumerate([*seconds, 5, 5, 5]):
        other = (
            {} if number < len(seconds) else [{"exit_code": 1}, {"command": ["other"]}, {"gpu_memory": MIB}][number - 3]
        )
        end = now - timedelta(hours=1 + number)
        Container.objects.create(
            name=f"before-{number}",
            started_at=end - timedelta(seconds=took),
            finished_at=end,
            **fields | {"exit_code": 0} | other,
        )

"""The database has taken what was written, and the connection broke before it said so.

The answer to it is that it was not done. So what the database has of it comes to nothing: else it would count
for its owner, and nobody would ever end it.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, OperationalError
from django.utils import timezone

from scheduler.plugin import mounts
from scheduler.store import planned_runs, write_behind
from tests.scheduler.test_planned import ended, fails_at_first, plan, runs
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from web.models import Claim, Container, UsageSample, Volume
from web.models.states import NOTHING_HELD
from web.services import mounting
from web.services.placement import accept_placement
from web.services.placement.placement_ticket import PlacementTicket

OPTIONS = {"gpu_memory": "1GiB"}


@pytest.fixture
async def host(host: InProcess, settings: Any) -> InProcess:
    settings.GPUSHARE_PLUGIN_PEOPLE = ["ada"]
    await query(User.objects.create_user, "ada")
    return host


def unanswered(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, only: Callable[..., bool]) -> None:
    """The next call of this that is such a one is done, and then fails as if its connection had been cut."""
    real, done = getattr(owner, name), []

    def call(*arguments: Any, **fields: Any) -> Any:
        result = real(*arguments, **fields)
        if not done and only(*arguments):
            done.append(...)
            raise OperationalError("server closed the connection unexpectedly")
        return result

    monkeypatch.setattr(owner, name, call)


def _writes(asked: str) -> Callable[..., bool]:
    """Whether that is the query which is called in the transaction that holds the node's name."""
    return lambda _, query, *arguments: query.__name__ == asked


async def has_ended(host: InProcess, mount: str) -> Container:
    made = Container.objects.filter(mount=mount)
    row = await query(made.get)
    await host.until(row, "failed")
    return await query(made.get)


async def test_mounting_that_was_reported_to_docker_as_failed_comes_to_nothing(host: InProcess, monkeypatch) -> None:
    unanswered(monkeypatch, mounting, "mount", lambda *_: True)
    with pytest.raises(DatabaseError):
        await host.up.plugin.mounts.mount("v", OPTIONS, "m")
    row = await has_ended(host, "m")
    assert (row.reason, row.removed_at is not None) == (mounts.NEVER_STARTED, True)
    assert await host.living() == []


async def test_it_comes_to_nothing_once_the_database_answers_again(host: InProcess, monkeypatch) -> None:
    unanswered(monkeypatch, mounting, "mount", lambda *_: True)
    unanswered(monkeypatch, write_behind, "_while_ours", _writes("call_off"))
    with pytest.raises(DatabaseError):
        await host.up.plugin.mounts.mount("v", OPTIONS, "m")
    await has_ended(host, "m")
    await host.eventually(lambda: not host.up.plugin.mounts._unanswered)


async def test_it_comes_to_nothing_although_the_host_let_nobody_ask_the_database(host: InProcess, monkeypatch) -> None:
    unanswered(monkeypatch, mounting, "mount", lambda *_: True)
    call_off, failures = host.up.store.volumes.call_off, iter([RuntimeError("can't start new thread")])

    async def failing(*arguments: str) -> None:
        for failure in failures:
            raise failure
        await call_off(*arguments)

    monkeypatch.setattr(host.up.store.volumes, "call_off", failing)
    with pytest.raises(DatabaseError):
        await host.up.plugin.mounts.mount("v", OPTIONS, "m")
    await has_ended(host, "m")


async def test_mounting_that_is_asked_for_again_is_the_same(host: InProcess, monkeypatch) -> None:
    unanswered(monkeypatch, mounting, "mount", lambda *_: True)
    monkeypatch.setattr(mounts, "LOOK_EVERY", 600.0)
    with pytest.raises(DatabaseError):
        await host.up.plugin.mounts.mount("v", OPTIONS, "m")
    await host.up.plugin.mounts.mount("v", OPTIONS, "m")
    await host.up.plugin.mounts._look_at_all()
    (row,) = await host.living()
    assert str(row.pk) in host.up.broker.live_containers
    assert await query(Container.objects.count) == 1


async def test_what_a_swarm_brought_and_saw_fail_comes_to_nothing(host: InProcess, monkeypatch) -> None:
    owner = await query(User.objects.get, username="ada")
    fields = {"name": "a", "owner": owner, "image": "local", "node_id": host.up.store.here, "engine": "swarm"}
    row = await query(lambda: Container.objects.create(**fields, handed="key"))
    brought = PlacementTicket(row.pk, GIB, (0,), "key")
    unanswered(monkeypatch, write_behind, "_while_ours", _writes(accept_placement.accept.__name__))
    with pytest.raises(DatabaseError):
        await host.up.plugin.mounts.mount("v", brought.options(), "m")
    assert (await has_ended(host, "m")).pk == row.pk


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"command": ["fails_at_first"], "retries": 1, "retry_pause": 1}, ["p", "p.2"]),
        ({"sweep": {"count": 3}, "at_once": 2}, ["p-0001", "p-0002", "p-0003"]),
    ],
)
async def test_run_that_had_begun_all_the_same_begins_once_and_others_after_it(
    host: InProcess, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], names: list[str]
) -> None:
    host.engine.programs["fails_at_first"] = fails_at_first
    unanswered(monkeypatch, planned_runs, "start", lambda *_: True)
    planned = await plan(host, name="p", **fields)
    await ended(host, planned)
    assert [each.name for each in await runs(planned)] == names


async def test_quota_that_was_refused_is_not_the_larger_one(host: InProcess, monkeypatch) -> None:
    container = await host.launch("sleep", "600", gpu_memory=GIB)
    unanswered(monkeypatch, write_behind, "_while_ours", _writes("_promise"))
    answer = await host.command("change", container, gpu_memory=2 * GIB)
    assert (answer.outcome, answer.code) == ("refused", "database_away")
    await host.up.store.flush()
    assert (await host.claim(container)).quota == GIB
    assert await host.events(container, "quota") == []


async def test_launch_that_was_refused_has_ended_and_holds_nothing(host: InProcess, monkeypatch) -> None:
    unanswered(monkeypatch, write_behind, "_while_ours", _writes("_promise"))
    container, launching = await host.start_launch("sleep", "600")
    assert (await host.answer(launching)).code == "database_away"
    assert await host.living() == []
    assert not await query(Claim.objects.exclude(**NOTHING_HELD).exists)
    assert str(container.pk) not in host.up.broker.live_containers


async def test_samples_that_were_written_are_not_written_again(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a container has computed twice as long in that minute."""
    (gpu,) = host.up.gpus.cards
    at = timezone.now()
    mine = UsageSample.objects.filter(at=at).values_list
    id_ = str((await host.launch("sleep", "600")).pk)
    host.up.store.sample(id_, gpu, at, used=1, peak=1)
    unanswered(
        monkeypatch, write_behind, "write_batch", lambda _, __, samples, *___: any(it.at == at for it in samples)
    )
    with contextlib.suppress(OperationalError):  # or whoever flushes beside this test has it
        await host.up.store.flush()
    host.up.store.sample(id_, gpu, at, used=2, peak=2)
    while len(rows := await query(lambda: list(mine("used", flat=True)))) < 2:
        with contextlib.suppress(OperationalError):
            await host.up.store.flush()
    assert sorted(rows) == [1, 2]


async def test_volume_that_is_made_again_is_the_same(host: InProcess, monkeypatch) -> None:
    unanswered(monkeypatch, mounting, "make", lambda *_: True)
    with pytest.raises(DatabaseError):
        await host.up.store.volumes.make("v", OPTIONS)
    await host.up.store.volumes.make("v", OPTIONS)
    assert await query(Volume.objects.count) == 1


async def test_volume_that_was_reported_to_docker_as_not_made_is_in_nobodys_way(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker knows of none, so it has nothing that could be removed first."""
    unanswered(monkeypatch, mounting, "make", lambda *_: True)
    call = host.up.plugin._driver.call
    answer = await call("VolumeDriver.Create", {"Name": "v", "Opts": OPTIONS})
    assert answer["Err"].startswith("gpushare: The database did not take this.")
    assert (await call("VolumeDriver.Get", {"Name": "v"}))["Err"] == 'gpushare: There is no volume "v" here.'
    assert (await call("VolumeDriver.Create", {"Name": "v", "Opts": {"gpu_memory": "2GiB"}}))["Err"] == ""
    made = await query(Volume.objects.get)
    assert made.options == {"gpu_memory": "2GiB"}

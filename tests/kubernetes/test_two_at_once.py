"""Two who act on one claim at once, and what fails between two steps: nothing comes back that was given back, nothing
is reported that was not so, and whoever asks again gets what was promised."""

import asyncio
import errno
import gc
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from scheduler.engines.base import Condition
from scheduler.kubernetes import driver
from scheduler.kubernetes.kubelet.server import Asked, KubeletServer
from scheduler.store.node_lease import NameTaken
from scheduler.store.volumes import Volumes
from tests.kubernetes.cluster.api_server import CLAIMS, PODS, Refused
from tests.kubernetes.conftest import Lab
from tests.support.eventually import eventually
from tests.support.host import GIB, query
from web.models import Container


async def test_what_is_given_back_while_its_pods_are_looked_at_does_not_come_back(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi", name="shared")
    pod = await lab.pods.make("first", {"main": claim})
    await lab.pods.start(pod)
    await lab.pods.make("later", {"main": lab.api.objects[CLAIMS, "team-a", "shared"]})
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def wait(verb: str, key: tuple[str, str, str]) -> None:
        if key[2] == "later" and not asked.is_set():
            asked.set()
            await goes_on.wait()

    lab.api.before = wait
    looking = asyncio.create_task(lab.node.driver.look_at_claims(0))
    await asked.wait()
    await lab.unprepare(claim)
    goes_on.set()
    await looking
    await lab.nothing_is_held()
    assert isinstance(await lab.prepare(claim), dict)  # for the next pod
    assert len(await lab.living()) == 1
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_how_it_ended_stays_when_the_kubelet_gives_back_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi")
    pod = await lab.pods.make("train", {"main": claim})
    await lab.pods.start(pod)
    (container,) = await lab.living()
    await lab.pods._tell(pod, {"exitCode": 3, "reason": "Error", "message": "no data"})

    async def fail() -> None:
        raise OperationalError("the disk is full")

    with monkeypatch.context() as away:
        away.setattr(lab.up.store, "durable", fail)
        answer = await lab.kubelet.unprepare(claim)
        assert "The database did not take this" in next(iter(answer.values()))
    await lab.up.store.durable()
    before = await lab.get(container)
    assert (before.exit_code, before.reason) == (3, "The container main of the pod train: no data.")
    await lab.unprepare(claim)
    await lab.nothing_is_held()
    after = await lab.get(container)
    assert (after.reason, after.finished_at) == (before.reason, before.finished_at)


async def test_two_who_give_back_at_once_tell_once_how_it_ended(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi")
    pod = await lab.pods.make("train", {"main": claim})
    await lab.pods.start(pod)
    (container,) = await lab.living()
    await lab.pods._tell(pod, {"exitCode": 3, "reason": "Error", "message": "no data"})
    await asyncio.gather(*(lab.node.driver.give_back(claim["metadata"]["uid"]) for _ in range(3)))
    ended = await lab.get(container)
    assert (ended.exit_code, ended.reason) == (3, "The container main of the pod train: no data.")
    await lab.nothing_is_held()


async def test_a_socket_that_could_not_be_made_is_made_when_the_kubelet_asks_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.published()
    claim = await lab.allocator.claim("2Gi")

    def fail(id_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(lab.up.server, "listen", fail)
        assert "No space left on device" in await lab.prepare(claim)
    assert isinstance(await lab.prepare(claim), dict)
    (container,) = await lab.living()
    assert (lab.home / "sockets" / str(container.pk) / "gpushare.sock").is_socket()
    await lab.until(container, "running")
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_of_a_promise_that_the_database_may_have_nothing_is_left(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, and nobody knows of what: whoever asks again has one container, and its memory once."""
    await lab.published()
    claim, claiming = await lab.allocator.claim("3Gi"), Volumes.claim

    async def lost(volumes: Volumes, *arguments: Any) -> Container:
        await claiming(volumes, *arguments)
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as away:
        away.setattr(Volumes, "claim", lost)
        assert "The database did not take this" in await lab.prepare(claim)
    assert isinstance(await lab.prepare(claim), dict)
    (container,) = await lab.living()
    assert list(lab.up.broker.live_containers) == [str(container.pk)]
    assert (await lab.claim(container)).quota == 3 * GIB
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_a_driver_whose_name_is_anothers_by_now_promises_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin has removed the node, or another scheduler works for it: that one would promise the same memory."""
    await lab.published()
    claim, lost = await lab.allocator.claim("1Gi"), []

    def taken() -> None:
        raise NameTaken("It is another's.")

    with monkeypatch.context() as removed:
        removed.setattr(lab.up.store, "_lose", lost.append)
        removed.setattr(lab.up.store, "require_name", taken)
        answer = await lab.prepare(claim)
    assert "The database did not take this" in answer
    assert lost
    assert await query(Container.objects.count) == 0
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_what_was_promised_without_our_record_is_over_and_why_is_said(lab: Lab) -> None:
    """The record was lost with its disk."""
    await lab.published()
    claim = await lab.allocator.claim("3Gi")
    await lab.prepare(claim)
    (first,) = await lab.living()
    await lab.stop()
    (lab.home / "kubernetes" / "claims" / f"{claim['metadata']['uid']}.json").unlink()
    await lab.start()
    await lab.published()
    assert (await lab.get(first)).reason == driver.LOST
    assert isinstance(await lab.prepare(claim), dict)
    (second,) = await lab.living()
    assert second.pk != first.pk
    assert list(lab.up.broker.live_containers) == [str(second.pk)]
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_one_claim_that_cannot_be_read_keeps_no_other_from_being_given_back(lab: Lab) -> None:
    await lab.published()
    bad, lost = await lab.allocator.claim("1Gi", name="a-bad"), await lab.allocator.claim("1Gi", name="lost")
    await lab.kubelet.prepare(bad)
    await lab.kubelet.prepare(lost)
    await lab.allocator.release(lost)

    async def fail(verb: str, key: tuple[str, str, str]) -> None:
        if key[2] == "a-bad":
            raise Refused(500, "InternalError", "cannot be decoded")

    lab.api.before = fail
    await lab.node.driver.look_at_claims(0)
    assert [container.name for container in await lab.living()] == ["a-bad"]


async def test_one_that_is_given_back_while_it_is_looked_whether_it_is_paused_is_seen_no_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi")
    await lab.prepare(claim)
    (container,) = await lab.living()
    engine, id_, loop = lab.node._engine, str(container.pk), asyncio.get_running_loop()
    engine.prepared(id_, container.created_at.timestamp(), paused=True)
    assert engine._changes.last(id_).condition is Condition.PAUSED

    def look(ids: Any) -> set[str]:
        """In its thread: meanwhile the kubelet gives it back."""
        if id_ in ids and engine.knows(id_):
            asyncio.run_coroutine_threadsafe(lab.unprepare(claim), loop).result(30)
        return set()

    monkeypatch.setattr(engine, "frozen", look)
    await eventually(lambda: not engine.knows(id_))
    await lab.nothing_is_held()
    await asyncio.gather(engine.look_at_paused(), engine.look_at_paused())
    assert await engine.statuses() == []


async def test_a_pod_whose_name_leads_elsewhere_is_no_pod(lab: Lab) -> None:
    """Whoever may write a claim's status names pods there, and what he names is not to be ended with our rights."""
    await lab.published()
    claim = await lab.allocator.claim("1Gi", name="odd")
    pod = await lab.pods.make("victim", {"main": await lab.allocator.claim("1Gi", namespace="team-b")})
    consumer = {"resource": "pods", "name": "../../team-b/pods/victim", "uid": pod["metadata"]["uid"]}
    status = {**claim["status"], "reservedFor": [consumer]}
    await lab.api.put(CLAIMS, "odd", {**claim, "status": status}, "team-a")
    await lab.prepare(claim)
    (container,) = await lab.living()
    assert container.pods == []
    command = await lab.command("kill", container)
    assert command.outcome == "refused"
    (left,) = lab.api.all(PODS)
    assert "deletionTimestamp" not in left["metadata"]


async def test_a_kubelet_that_hangs_up_before_its_claims_are_begun_leaves_no_call_behind(tmp_path: Path) -> None:
    begun = []

    async def prepare(asked: Asked) -> Any:
        begun.append(asked)

    kubelet = KubeletServer(tmp_path, prepare, prepare, lambda asked, error: "")
    request = SimpleNamespace(claims=[Asked("team-a", "first", "1"), Asked("team-a", "second", "2")])
    with warnings.catch_warnings(record=True) as warned:
        answering = asyncio.create_task(kubelet._each(request, prepare))
        await asyncio.sleep(0)  # it has made a task for each claim, and none has begun
        answering.cancel()
        await asyncio.wait([answering])
        gc.collect()
    assert (begun, [str(each.message) for each in warned]) == ([], [])

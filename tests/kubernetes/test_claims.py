"""From a claim that the cluster has allocated to a container with that quota, and back to nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from scheduler.kubernetes.kubelet import server
from tests.kubernetes.cluster.rules import JSON
from tests.kubernetes.conftest import Lab
from tests.support.eventually import eventually
from tests.support.host import GIB, query
from web.models import AuditEntry, Claim, Container


def variables(specification: JSON) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in specification["containerEdits"]["env"])


async def test_a_claim_becomes_a_container_with_its_quota_and_ends_with_it(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("2Gi", name="training")
    uid, (card,) = claim["metadata"]["uid"], lab.up.gpus.cards
    assert await lab.prepare(claim) == {"gpu0": [f"gpushare.dev/claim={uid}.{card.lower()}"]}
    (container,) = await lab.living()
    assert (container.name, container.volume, container.mount) == ("training", "team-a/training", uid)
    assert not container.give_way
    owner = await query(lambda: Container.objects.select_related("owner").get().owner.username)
    assert owner == "ada"
    assert (await lab.claim(container)).quota == 2 * GIB
    await lab.until(container, "running")
    specification = lab.specification(claim)
    said = variables(specification)
    assert said["GPUSHARE_MEMORY_LIMIT"] == str(2 * GIB)
    assert said["GPUSHARE_MEMORY_FRACTION"] == "0.400000"  # of 5 GiB, in the words of a launch
    assert (said["LD_PRELOAD"], said["CUDA_VISIBLE_DEVICES"]) == ("/run/gpushare-lib/libgpushare.so", card)
    mounts = {mount["containerPath"]: mount for mount in specification["containerEdits"]["mounts"]}
    assert mounts["/run/gpushare"]["hostPath"] == str(lab.home / "sockets" / str(container.pk))
    assert "ro" in mounts["/run/gpushare"]["options"]
    # What is in the driver's image is not on the host, where a runtime looks for what it mounts.
    assert [mount for mount in mounts.values() if not Path(mount["hostPath"]).is_relative_to(lab.home)] == []
    assert Path(mounts["/etc/ld.so.preload"]["hostPath"]).read_text() == "/run/gpushare-lib/libgpushare.so\n"  # noqa: ASYNC240 - a moment
    assert (lab.home / "sockets" / str(container.pk) / "gpushare.sock").is_socket()
    await lab.unprepare(claim)
    await lab.nothing_is_held()
    ended = await lab.get(container)
    assert (ended.exit_code, ended.reason) == (
        None,
        "Kubernetes has released it; kubectl shows how its programs ended.",
    )
    actions = await query(lambda: list(AuditEntry.objects.values_list("actor", "action")))
    assert ("kubelet", "claim") in actions


async def test_the_quota_is_what_was_consumed_and_not_what_was_asked_for(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1500M")
    assert claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] == {"memory": "1431Mi"}
    await lab.prepare(claim)
    assert [each.quota for each in await query(lambda: list(Claim.objects.all()))] == [1431 << 20]
    await lab.unprepare(claim)
    nothing = await lab.allocator.claim(None)
    await lab.prepare(nothing)
    (container,) = await lab.living()
    assert (await lab.claim(container)).quota == GIB


async def test_what_the_kubelet_asks_again_is_answered_again(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("2Gi")
    first = await lab.prepare(claim)
    assert await asyncio.gather(*(lab.prepare(claim) for _ in range(8))) == [first] * 8
    assert await query(Container.objects.count) == 1
    for _ in range(2):
        await lab.unprepare(claim)
    await lab.nothing_is_held()
    assert await lab.prepare(claim) == first  # the same claim, for the next pod
    assert await query(Container.objects.count) == 2
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_many_at_once_that_prepare_and_give_back_leave_nothing(lab: Lab) -> None:
    await lab.published()
    claims = [await lab.allocator.claim("256Mi") for _ in range(16)]
    await asyncio.gather(*(ask(claim) for claim in claims for ask in (lab.prepare, lab.prepare)))
    assert len(await lab.living()) == 16
    await asyncio.gather(*(lab.unprepare(claim) for claim in claims for _ in range(2)))
    await lab.nothing_is_held()


async def test_each_claim_of_a_call_is_answered_apart(lab: Lab) -> None:
    await lab.published()
    good, gone = await lab.allocator.claim("1Gi"), await lab.allocator.claim("1Gi")
    await lab.allocator.release(gone)
    answer = await lab.kubelet.prepare(good, gone)
    assert isinstance(answer[good["metadata"]["uid"]], dict)
    assert "was deleted while it was to be prepared" in answer[gone["metadata"]["uid"]]
    assert len(await lab.living()) == 1


class HeldUp:
    def __init__(self) -> None:
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()


@pytest.fixture
async def held_up(lab: Lab) -> AsyncIterator[HeldUp]:
    """The API server answers no question about the claim "slow" until `goes_on` is set; `asked` says that one came."""
    held = HeldUp()

    async def wait(verb: str, key: tuple[str, str, str]) -> None:
        if key[2] == "slow":
            held.asked.set()
            await held.goes_on.wait()

    lab.api.before = wait
    yield held
    held.goes_on.set()


async def test_what_takes_too_long_is_reported_in_time_and_goes_on(
    lab: Lab, held_up: HeldUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.published()
    slow, quick = await lab.allocator.claim("1Gi", name="slow"), await lab.allocator.claim("1Gi")
    assert isinstance(await lab.prepare(quick), dict)  # from now on by its record, so only the slow one can be late
    with monkeypatch.context() as patched:
        patched.setattr(server, "ANSWERS_WITHIN", 3.0)
        answer = await lab.kubelet.prepare(slow, quick)
    assert "It could not be done in time; it goes on" in answer[slow["metadata"]["uid"]]
    assert isinstance(answer[quick["metadata"]["uid"]], dict)
    assert isinstance(await lab.prepare(await lab.allocator.claim("1Gi")), dict)  # a new one waits for no slow one
    held_up.goes_on.set()
    await eventually(lambda: len(lab.up.broker.live_containers) == 3)
    assert isinstance(await lab.prepare(slow), dict)
    assert len(await lab.living()) == 3


async def test_a_kubelet_that_waited_in_vain_asks_again_and_nothing_is_promised_twice(
    lab: Lab, held_up: HeldUp
) -> None:
    await lab.published()
    slow = await lab.allocator.claim("3Gi", name="slow")
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            await lab.kubelet.prepare(slow, waits=0.1)
    held_up.goes_on.set()
    assert isinstance(await lab.prepare(slow), dict)
    assert [each.quota for each in await query(lambda: list(Claim.objects.all()))] == [3 * GIB]
    await lab.unprepare(slow)
    await lab.nothing_is_held()


async def test_what_the_kubelet_gives_back_while_it_is_prepared_is_not_held(lab: Lab, held_up: HeldUp) -> None:
    await lab.published()
    slow = await lab.allocator.claim("1Gi", name="slow")
    waits = asyncio.create_task(lab.kubelet.prepare(slow))
    await held_up.asked.wait()
    waits.cancel()  # the kubelet has waited for long enough
    await asyncio.wait([waits])
    given_back = asyncio.create_task(lab.unprepare(slow))
    await asyncio.sleep(0.1)
    assert not given_back.done()  # in turn: it may have been promised meanwhile
    held_up.goes_on.set()
    await given_back
    await lab.nothing_is_held()


async def test_an_older_kubelet_is_served_by_its_own_version(lab: Lab) -> None:
    await lab.published()
    await lab.kubelet.stop()
    lab.kubelet.versions = ("v1beta1.DRAPlugin",)
    await lab.kubelet.restart()
    await lab.published()
    claim = await lab.allocator.claim("1Gi")
    assert isinstance(await lab.prepare(claim), dict)
    assert lab.kubelet.drivers["gpushare.dev"][1] == "v1beta1.DRAPlugin"
    await lab.unprepare(claim)


async def test_parameters_say_how_it_shares_and_the_claims_own_hold(lab: Lab) -> None:
    await lab.published()
    form = {"apiVersion": "gpushare.dev/v1", "kind": "Quota"}
    claim = await lab.allocator.claim(
        "1Gi",
        of_class={**form, "priority": -5, "weight": 50},
        parameters={**form, "priority": 7, "on_shortage": "fail", "max_wait": 30},
    )
    await lab.prepare(claim)
    (made,) = await lab.living()
    assert (made.priority, made.compute_weight, made.on_shortage, made.max_wait_seconds) == (7, 50, "fail", 30.0)


async def test_two_requests_of_a_claim_for_one_card_are_one_quota(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("1Gi", "2Gi")
    answer = await lab.prepare(claim)
    assert answer.keys() == {"gpu0", "gpu1"}
    assert answer["gpu0"] == answer["gpu1"]
    (container,) = await lab.living()
    assert (await lab.claim(container)).quota == 3 * GIB


@pytest.mark.parametrize("gpus", ["sim:2x5GiB"])
async def test_a_claim_on_two_cards_has_a_quota_on_each(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("4Gi", "3Gi")
    answer = await lab.prepare(claim)
    assert answer["gpu0"] != answer["gpu1"]
    found = await query(lambda: [each.quota for each in Claim.objects.order_by("gpu__index")])
    assert found == [4 * GIB, 3 * GIB]
    specification = lab.specification(claim)
    assert "CUDA_VISIBLE_DEVICES" not in variables(specification)
    assert variables(specification)["GPUSHARE_MEMORY_LIMIT"] == str(3 * GIB)
    assert len(specification["devices"]) == 2
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_what_is_prepared_stays_so_while_the_api_server_is_away(lab: Lab) -> None:
    await lab.published()
    claim, new = await lab.allocator.claim("1Gi"), await lab.allocator.claim("1Gi")
    first = await lab.prepare(claim)
    await lab.api.stop()
    assert await lab.prepare(claim) == first
    assert "does not answer" in await lab.prepare(new)
    await lab.unprepare(claim)
    await lab.nothing_is_held()
    await lab.api.start()
    assert isinstance(await lab.prepare(new), dict)


async def test_a_scheduler_that_is_restarted_knows_its_claims(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("2Gi")
    first = await lab.prepare(claim)
    (container,) = await lab.living()
    await lab.until(container, "running")
    await lab.stop()
    await lab.api.stop()
    await lab.start()
    assert [str(container.pk)] == list(lab.up.broker.live_containers)
    await eventually(lambda: "gpushare.dev" in lab.kubelet.drivers)
    assert await lab.prepare(claim) == first
    await lab.unprepare(claim)
    await lab.nothing_is_held()
    await lab.api.start()


async def test_a_claim_that_nobody_gives_back_is_given_back_when_the_cluster_does_not_know_it(lab: Lab) -> None:
    await lab.published()
    kept, lost = await lab.allocator.claim("1Gi", name="kept"), await lab.allocator.claim("1Gi", name="lost")
    await lab.kubelet.prepare(kept, lost)
    await lab.node.driver.look_at_claims(0)
    assert len(await lab.living()) == 2
    await lab.allocator.release(lost)
    await lab.node.driver.look_at_claims(0)
    assert [container.name for container in await lab.living()] == ["kept"]
    await lab.unprepare(lost)
    await lab.unprepare(kept)
    await lab.nothing_is_held()

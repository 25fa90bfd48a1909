"""Where a cluster cannot divide devices: units of 256 MiB that the kubelet counts, each allocation on one card."""

import errno
from collections.abc import AsyncIterator

import grpc
import pytest
from django.conf import settings

from scheduler.kubernetes import units
from scheduler.kubernetes.kubelet import contracts, plugin, sockets
from tests.kubernetes.cluster.api_server import PODS, SLICES
from tests.kubernetes.cluster.counter import Counter
from tests.kubernetes.conftest import Lab
from tests.kubernetes.test_cut_off import MOMENTS, PREPARING, another
from tests.support.eventually import eventually
from tests.support.host import GIB

TRAIN = ("team-a", "train", "main")
CARDS = {"gpu-a": (4 * GIB, 4 * GIB), "gpu-b": (2 * GIB, 2 * GIB)}


@pytest.fixture
async def counter(lab: Lab) -> AsyncIterator[Counter]:
    """The kubelet's, in a cluster with the feature gate off."""
    settings.GPUSHARE_KUBERNETES_PEOPLE = {"*": "ada"}
    found = Counter(lab.home.parent / "none")
    found.folder, found.lists = (
        lab.kubelet.plugins.with_name("device-plugins"),
        lab.kubelet.plugins.with_name("pod-resources"),
    )
    lab.api.consumable = False
    await lab.stop()
    await found.start()
    await lab.start()
    await eventually(lambda: found.allocatable)
    yield found
    await found.stop()


async def pod(lab: Lab, name: str = "train") -> None:
    spec = {
        "nodeName": "node-1", "serviceAccountName": "trainer",
        "containers": [{"name": "main", "image": "registry/program:1"}, {"name": "proxy", "image": "registry/other:1"}],
    }  # fmt: skip
    await lab.api.put(PODS, name, {"spec": spec, "status": {}}, "team-a")


async def test_units_become_a_quota_and_the_container_has_its_pods_name_a_moment_later(
    lab: Lab, counter: Counter
) -> None:
    assert lab.api.all(SLICES) == []
    assert counter.registered == ["gpushare.dev/memory-256mib"]
    (card,) = lab.up.gpus.cards.values()
    assert counter.allocatable == card.capacity(0) // units.UNIT
    await pod(lab)
    reported = await counter.allocate(TRAIN, 8)
    (container,) = await lab.living()
    assert (await lab.claim(container)).quota == 2 * GIB
    assert reported["envs"]["GPUSHARE_MEMORY_LIMIT"] == str(2 * GIB)
    assert (str(lab.home / "sockets" / str(container.pk)), "/run/gpushare", True) in reported["mounts"]
    await lab.node.counting.look()
    seen = await lab.get(container)
    assert (seen.name, seen.namespace, seen.image) == ("train.main", "team-a", "registry/program:1")
    assert (seen.pods[0]["account"], seen.pods[0]["containers"]) == ("trainer", ["main"])


async def test_it_ends_when_the_kubelet_has_its_units_again(lab: Lab, counter: Counter) -> None:
    await pod(lab)
    await counter.allocate(TRAIN, 8)
    await lab.node.counting.look()
    await lab.stop()
    await lab.start()
    await eventually(lambda: counter.allocatable)
    assert len(await lab.living()) == 1
    counter.pods.clear()
    await eventually(lambda: not lab.up.broker.live_containers)
    await lab.nothing_is_held()


async def test_one_that_has_completed_ends_before_its_pod_is_deleted(lab: Lab, counter: Counter) -> None:
    await pod(lab)
    await counter.allocate(TRAIN, 8)
    await lab.node.counting.look()
    (container,) = await lab.living()
    found = lab.api.objects[PODS, "team-a", "train"]
    over = {"name": "main", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    await lab.api.put(PODS, "train", {**found, "status": {"phase": "Failed", "containerStatuses": [over]}}, "team-a")
    await lab.node.counting.look()
    ended = await lab.get(container)
    assert (ended.state, ended.exit_code) == ("failed", 3)
    assert counter.pods  # the kubelet lists it all the same
    await lab.node.counting.look()
    await lab.nothing_is_held()


async def test_that_the_cluster_does_not_say_whose_one_is_keeps_no_other_from_its_end(
    lab: Lab, counter: Counter
) -> None:
    """The API server is away, or an author has named what no database takes."""
    await counter.allocate(TRAIN, 4)
    await counter.allocate(("team-a", "next", "main"), 4)
    await lab.api.stop()
    del counter.pods["team-a", "next", "main"]
    assert list(counter.pods) == [TRAIN]
    await eventually(lambda: len(lab.up.broker.live_containers) == 1)
    await lab.api.start()


async def test_units_whose_record_fails_in_the_middle_are_held_by_nobody(
    lab: Lab, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(id_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lab.up.server, "listen", fail)
    monkeypatch.setattr(lab.node.counting, "look", _nothing)
    with pytest.raises(grpc.aio.AioRpcError, match="No space left on device"):
        await counter.allocate(TRAIN, 4)
    await lab.nothing_is_held()


async def _nothing() -> None: ...


async def test_units_that_are_given_to_another_end_who_had_them(lab: Lab, counter: Counter) -> None:
    await counter.allocate(TRAIN, 8)
    (first,) = await lab.living()
    del counter.pods[TRAIN]
    await counter.allocate(("team-a", "next", "main"), 16)
    assert (await lab.get(first)).finished_at is not None
    (second,) = await lab.living()
    assert (await lab.claim(second)).quota == 4 * GIB


@pytest.mark.parametrize("gpus", ["sim:2x3GiB"])
async def test_an_allocation_is_on_one_card_or_refused(lab: Lab, counter: Counter) -> None:
    per_card = counter.allocatable // 2
    first = await counter.allocate(TRAIN, 4)
    second = await counter.allocate(("team-a", "second", "main"), per_card - 4)
    assert {units.card_of(unit) for unit in first["ids"]} == {units.card_of(unit) for unit in second["ids"]}
    await counter.allocate(("team-a", "third", "main"), per_card - 2)
    assert len(await lab.living()) == 3
    counter.pods.pop(("team-a", "second", "main"))
    with pytest.raises(grpc.aio.AioRpcError, match="on no single card"):
        await counter.allocate(("team-a", "wide", "main"), per_card - 2)


async def test_a_kubelet_that_starts_anew_is_informed_again(lab: Lab, counter: Counter) -> None:
    await counter.stop()
    await counter.start()
    await eventually(lambda: counter.allocatable)
    assert counter.registered == ["gpushare.dev/memory-256mib"] * 2
    await counter.allocate(TRAIN, 4)


async def test_a_list_that_the_kubelet_would_drop_is_not_sent(
    lab: Lab, counter: Counter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "MOST", 100)
    sizes = lab.node._sizes()
    lab.node.counting._cards = lambda: {uuid: (most, 0) for uuid, (most, _) in sizes.items()}
    await eventually(lambda: not counter.devices)
    assert "and the kubelet drops more than 100" in caplog.text
    assert counter.dropped == 0


@pytest.mark.long
@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("step", ["our record", "the database's", "the core", "the socket"])
async def test_killed_while_it_gives_units_it_leaves_nothing(lab: Lab, counter: Counter, step: str, when: str) -> None:
    """The kubelet has its answer in that: the pod is refused, and nobody asks again."""

    async def ready() -> None:
        await eventually(lambda: counter.allocatable)

    async with another(lab, f"{PREPARING[step]}:{when}", ready) as dying:
        with pytest.raises(grpc.aio.AioRpcError):
            await counter.allocate(TRAIN, 8)
        assert await dying.ended() == -9
    await ready()
    for _ in range(2):
        await lab.node.counting.look()
    await lab.nothing_is_held()
    await counter.allocate(TRAIN, counter.allocatable)
    assert len(await lab.living()) == 1


async def test_what_nobody_answers_for_is_refused_in_words(lab: Lab, counter: Counter) -> None:
    settings.GPUSHARE_KUBERNETES_PEOPLE = {"team-a": "ada"}
    with pytest.raises(grpc.aio.AioRpcError, match="No account is set for pods whose names are not known yet"):
        await counter.allocate(TRAIN, 4)
    await lab.nothing_is_held()


def test_what_is_missing_of_a_card_is_unhealthy_and_taken_from_what_nobody_has() -> None:
    used = {"gpu-a-15", "gpu-a-14"}
    health = units.units({"gpu-a": (4 * GIB, 3 * GIB + 1)}, used)
    sick = [unit for unit, state in health.items() if state == "Unhealthy"]
    assert sick == ["gpu-a-10", "gpu-a-11", "gpu-a-12", "gpu-a-13"]
    assert "Healthy" not in units.units({"gpu-a": (4 * GIB, 0)}, used).values()


def test_the_card_on_which_least_is_left_over_is_preferred() -> None:
    free = list(units.units(CARDS))
    assert {units.card_of(unit) for unit in units.preferred(free, [], 8)} == {"gpu-b"}
    assert {units.card_of(unit) for unit in units.preferred(free, [], 9)} == {"gpu-a"}
    assert units.preferred(free, ["gpu-a-3"], 2) == ["gpu-a-3", "gpu-a-0"]
    assert units.preferred(free, ["gpu-a-3", "gpu-b-0"], 2) == []
    assert units.preferred(free, [], 17) == []


def test_the_list_of_the_largest_hosts_is_far_below_what_the_kubelet_drops() -> None:
    cards = {f"gpu-{number:08d}-0000-0000-0000-000000000000": (288 * GIB, 288 * GIB) for number in range(16)}
    listed = units.units(cards)
    message = contracts.message("v1beta1.ListAndWatchResponse")(
        devices=[{"ID": name, "health": health} for name, health in listed.items()]
    )
    assert len(listed) == 16 * 288 * 4
    assert message.ByteSize() < sockets.MOST / 3

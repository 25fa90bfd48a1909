"""Pods are seen as containers: who they are, whose, how they ended; and people end, pause and change them."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from scheduler.kubernetes.engine import MEMORY_STAYS
from tests.kubernetes.cluster.api_server import CLAIMS, EVICTING, PODS, RIGHTS
from tests.kubernetes.cluster.pods import another
from tests.kubernetes.conftest import Lab
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import GIB, query
from web.models import Allowance, Container, Node


@pytest.fixture
async def lab_with_people(lab: Lab, settings: Any) -> Lab:
    """`team-c` is a group's, whose members' names their service accounts have; one of team-a's is bob's."""
    settings.GPUSHARE_KUBERNETES_PEOPLE = {"team-a": "ada", "team-a/robot": "bob", "team-c": "@lab"}
    group = await query(Group.objects.create, name="lab")
    carol = await query(User.objects.create_user, "carol")
    await query(lambda: carol.groups.add(group))
    return lab


async def owner(container: Container) -> str:
    return await query(lambda: Container.objects.select_related("owner").get(pk=container.pk).owner.username)


@pytest.mark.parametrize("generated", [False, True], ids=["a claim by name", "a claim of a template"])
async def test_a_pod_is_seen_with_its_names_its_account_and_how_it_ended(lab: Lab, generated: bool) -> None:
    await lab.published()
    claim = await lab.allocator.claim("2Gi", name="train-gpu-x7k2p")
    pod = await lab.pods.make("train", {"main": claim}, account="trainer", generated=generated)
    await lab.pods.start(pod)
    (container,) = await lab.living()
    assert (container.name, container.namespace, container.image) == ("train", "team-a", "registry/program:1")
    assert container.pods == [
        {"name": "train", "uid": pod["metadata"]["uid"], "account": "trainer", "containers": ["main"]}
    ]
    await lab.pods.end(pod, 3)
    ended = await lab.get(container)
    assert (ended.state, ended.exit_code, ended.reason) == ("failed", 3, "")
    await lab.nothing_is_held()


async def test_containers_of_one_pod_with_claims_of_their_own_are_distinguished(lab: Lab) -> None:
    await lab.published()
    first, second = await lab.allocator.claim("1Gi"), await lab.allocator.claim("2Gi")
    pod = await lab.pods.make("both", {"big": second, "small": first}, others=("proxy",))
    await lab.pods.start(pod)
    names = {each.name: (await lab.claim(each)).quota for each in await lab.living()}
    assert names == {"both.big": 2 * GIB, "both.small": GIB}


async def test_a_container_with_two_claims_gets_one_and_a_sentence(lab: Lab) -> None:
    """It would see the socket of one only, and that one's quota."""
    await lab.published()
    first, second = await lab.allocator.claim("1Gi"), await lab.allocator.claim("1Gi")
    pod = await lab.pods.make("greedy", {"main": first})
    spec = pod["spec"]
    spec["resourceClaims"].append({"name": "more", "resourceClaimName": second["metadata"]["name"]})
    spec["containers"][0]["resources"]["claims"].append({"name": "more"})
    await lab.api.put(PODS, "greedy", pod, "team-a")
    await lab.pods.reserve("team-a", second["metadata"]["name"], pod)
    answer = await lab.pods.start(pod)
    (refused,) = [each for each in answer if isinstance(each, str)]
    assert "The container main of the pod greedy has another claim of gpushare.dev already" in refused
    assert len(await lab.living()) == 1
    await lab.pods.end(pod)
    await lab.nothing_is_held()


async def test_containers_that_share_a_claim_are_one_and_a_later_pod_joins_it(lab: Lab) -> None:
    await lab.published()
    claim = await lab.allocator.claim("2Gi", name="shared")
    pod = await lab.pods.make("both", {"a": claim, "b": claim})
    await lab.pods.start(pod)
    (container,) = await lab.living()
    assert (container.name, container.pods[0]["containers"]) == ("both", ["a", "b"])
    await lab.pods.make("later", {"main": lab.api.objects[CLAIMS, "team-a", "shared"]})
    await lab.node.driver.look_at_claims(0)
    await lab.up.store.durable()
    assert [each["name"] for each in (await lab.get(container)).pods] == ["both", "later"]
    await lab.command("kill", container)
    assert (await lab.get(container)).state == "killed"
    await eventually(lambda: not lab.api.all(PODS))
    await lab.nothing_is_held()


async def test_how_it_ended_is_waited_for_a_moment_and_reported_with_why(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.kubernetes.pods.TELLS_WITHIN", PATIENCE)
    await lab.published()
    pod, container = await lab.running_pod()
    lab.pods.late = 0.6
    await lab.pods.end(pod, 137, "OOMKilled")
    ended = await lab.get(container)
    assert (ended.exit_code, ended.reason) == (137, "The container main of the pod train: OOMKilled.")


async def test_how_it_ended_is_not_made_up_where_the_api_server_is_away(lab: Lab) -> None:
    await lab.published()
    pod, container = await lab.running_pod()
    await lab.api.stop()
    await lab.pods.end(pod)
    await lab.nothing_is_held()
    ended = await lab.get(container)
    assert ended.exit_code is None
    assert "kubectl shows" in ended.reason
    await lab.api.start()


async def test_whose_a_pod_is_its_service_account_can_say(lab_with_people: Lab) -> None:
    lab = lab_with_people
    await lab.published()
    for account, namespace, whose in (
        ("robot", "team-a", "bob"),
        ("web", "team-a", "ada"),
        ("carol", "team-c", "carol"),
    ):
        claim = await lab.allocator.claim("1Gi", namespace=namespace)
        pod = await lab.pods.make(f"of-{account}", {"main": claim}, account=account)
        await lab.pods.start(pod)
        assert await owner(await query(Container.objects.get, name=f"of-{account}")) == whose


async def test_a_service_account_outside_the_group_gets_nothing(lab_with_people: Lab) -> None:
    lab = lab_with_people
    await lab.published()
    for account, why in (("ada", "no member of the group"), ("default", "no active account")):
        claim = await lab.allocator.claim("1Gi", namespace="team-c")
        pod = await lab.pods.make(f"of-{account}", {"main": claim}, account=account)
        (answer,) = await lab.pods.start(pod)
        assert why in answer
    assert await lab.living() == []


async def test_an_image_that_its_owner_may_not_launch_is_refused(lab: Lab) -> None:
    await lab.published()
    ada = await query(User.objects.get, username="ada")
    await query(Allowance.objects.create, user=ada, images=["lab/*"])
    pod = await lab.pods.make("train", {"main": await lab.allocator.claim("1Gi")})
    (answer,) = await lab.pods.start(pod)
    assert 'For its owner here, "ada": You may not launch registry/program:1' in answer


async def test_that_its_memory_stays_on_the_card_is_known_before_anybody_asks(lab: Lab) -> None:
    """Else lists offer to free it, and other nodes are passed over for a launch that would be served after it."""
    await eventually(lambda: lab.up.swapping.why_not == MEMORY_STAYS)
    await lab.up.store.durable()
    assert (await query(Node.objects.get)).cannot_swap == MEMORY_STAYS


@pytest.mark.parametrize("way", ["delete", "evict"])
async def test_killing_ends_its_pods_with_the_grace_that_was_asked_for(lab: Lab, way: str) -> None:
    lab.node.driver._pods._way = way
    lab.api.rights = EVICTING if way == "evict" else RIGHTS
    await lab.published()
    _, container = await lab.running_pod()
    graces: list[int] = []

    async def stop(found: Any) -> None:
        graces.append(found["metadata"]["deletionGracePeriodSeconds"])

    lab.pods.stop = stop
    lab.api.calls.clear()
    command = await lab.command("kill", container, grace=20)
    assert command.outcome == "done", command.message
    assert (("create", "pods/eviction") in lab.api.calls) == (way == "evict")
    assert (("delete", PODS) in lab.api.calls) == (way == "delete")
    assert graces == [20]
    ended = await lab.get(container)
    assert (ended.state, ended.exit_code) == ("killed", 137)
    await lab.nothing_is_held()


async def test_another_pod_of_the_same_name_is_not_ended_for_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.containers.terminator.SEEN_WITHIN", 0.5)
    await lab.published()
    pod, container = await lab.running_pod()
    await lab.api.remove(PODS, "train", "team-a")
    await lab.api.put(PODS, "train", another(pod), "team-a")
    assert (await lab.command("kill", container)).outcome == "refused"
    assert "deletionTimestamp" not in lab.api.all(PODS)[0]["metadata"]


async def test_an_eviction_that_a_budget_forbids_is_reported_and_tried_again(lab: Lab) -> None:
    lab.node.driver._pods._way, lab.api.rights = "evict", EVICTING
    await lab.published()
    _, container = await lab.running_pod()
    lab.api.budgets.add(("team-a", "train"))
    command = await lab.command("kill", container)
    assert (command.outcome, command.code) == ("refused", "cannot_end")
    assert "PodDisruptionBudget" in command.message
    lab.api.budgets.clear()
    await lab.until(container, "killed")


async def test_a_kill_while_the_api_server_is_away_is_carried_out_when_it_is_back(lab: Lab) -> None:
    await lab.published()
    _, container = await lab.running_pod()
    await lab.api.stop()
    command = await lab.command("kill", container)
    assert (command.outcome, command.status) == ("refused", 503)
    await lab.api.start()
    await lab.until(container, "killed")
    await lab.nothing_is_held()


async def test_a_quota_can_be_less_than_the_claim_and_back_but_not_more(lab: Lab) -> None:
    await lab.published()
    _, container = await lab.running_pod("3Gi")
    for size, outcome in ((GIB, "done"), (3 * GIB, "done"), (4 * GIB, "refused")):
        command = await lab.command("change", container, gpu_memory=size)
        assert command.outcome == outcome, command.message
    assert "The cluster has taken 3 GiB of the card for the claim team-a/" in command.message
    assert (await lab.claim(container)).quota == 3 * GIB


async def test_nothing_can_be_paused_that_does_not_run(lab: Lab) -> None:
    await lab.published()
    _, container = await lab.running_pod()
    command = await lab.command("pause", container)
    assert (command.outcome, command.code) == ("refused", "not_running")

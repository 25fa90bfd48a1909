"""A launch among several nodes, from the records: constraints by their labels, the policy of the setting, and why."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from tests.support.machine import GIB, commands_answered, make_container, make_gpu, make_node
from tests.support.people import signed_in
from web.errors import Problem
from web.models import Container, Gpu, Node, Reservation
from web.services import steering
from web.services.placement import sites

pytestmark = pytest.mark.django_db


@pytest.fixture
def nodes(db: None) -> dict[str, Node]:
    """Three with a card of 16 GiB each; b and c have fast disks."""
    made = {}
    for number, (name, labels) in enumerate({"a": {}, "b": {"disk": "ssd"}, "c": {"disk": "SSD"}}.items()):
        made[name] = make_node(name=name, labels=labels)
        make_gpu(made[name], number, capacity=16 * GIB)
    return made


def card(node: Node) -> Gpu:
    return Gpu.objects.get(node=node)


def launched(ada: User, **fields: Any) -> Container:
    made = steering.launch(ada, {"image": "local", "gpu_memory": 2 * GIB, **fields}).container
    assert made is not None
    return made


def refused(ada: User, **fields: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        launched(ada, **fields)
    assert not Container.objects.exists()
    return caught.value


def test_constraints_are_so_of_the_node_and_the_case_of_a_value_makes_no_difference(ada, nodes) -> None:
    make_container(ada, "large", card(nodes["b"]), quota=8 * GIB)
    assert launched(ada, constraints=["node.labels.disk==ssd"]).node == nodes["c"]
    assert launched(ada, constraints=["node.labels.disk != ssd"]).node == nodes["a"]  # it has no such label
    only = launched(ada, constraints=["node.labels.disk==ssd", "node.hostname!=c"])
    assert only.node == nodes["b"]
    assert only.constraints == ["node.labels.disk==ssd", "node!=c"]
    assert only.node_reason == "b is the only one of 3 nodes that is as asked and can ever give that."


def test_a_node_whose_card_is_reserved_for_others_within_the_time_limit_counts_as_promised(ada, nodes) -> None:
    bob = User.objects.create(username="bob")
    now = timezone.now()
    begins, until = now + timedelta(hours=2), now + timedelta(hours=3)
    kept = Reservation.objects.create(user=bob, starts=f"{begins:%Y-%m-%dT%H:%M}", zone="UTC", minutes=60,
                                      gpu_memory=8 * GIB, over_at=until, made_by="bob")  # fmt: skip
    kept.cards.create(gpu=card(nodes["a"]))
    assert launched(ada, ttl_seconds=3600).node == nodes["a"]
    Container.objects.all().delete()
    made = launched(ada, ttl_seconds=10_000)
    assert made.node == nodes["b"]
    assert made.node_reason.startswith("b has the most room: 16 GiB is not promised")


def test_what_is_so_of_no_node_is_refused_and_says_which(ada, nodes) -> None:
    problem = refused(ada, constraints=["node!=a", "node.labels.disk==tape"])
    assert (problem.code, problem.field) == ("no_such_node", "constraints")
    assert problem.message == '"node.labels.disk==tape" is so of no node: `gpushare nodes` shows their labels.'
    assert refused(ada, constraints=["node==a", "node==b"]).message.startswith("All of it together is so of no node")
    assert refused(ada, node="a", constraints=["node.labels.disk==ssd"]).message.startswith(
        '"node.labels.disk==ssd" is so not of "a"'
    )


def test_a_card_out_of_service_gets_nothing_and_a_launch_that_only_it_could_take_says_so(ada, nodes) -> None:
    Gpu.objects.exclude(node=nodes["c"]).update(drained_at=timezone.now(), drain_reason="XID 79")
    assert launched(ada).node == nodes["c"]
    Container.objects.all().delete()
    for fields in ({"node": "a"}, {"gpus": [card(nodes["a"]).uuid]}, {"constraints": ["node==b"]}):
        assert refused(ada, **fields).code == "gpu_drained"


def test_a_node_that_is_as_asked_and_drained_or_away_is_not_passed_over_in_silence(ada, nodes) -> None:
    Node.objects.filter(name="b").update(drained_at=timezone.now())
    assert refused(ada, constraints=["node==b"]).code == "node_draining"
    Node.objects.filter(name="c").update(seen_at=timezone.now() - timedelta(minutes=1))
    assert refused(ada, constraints=["node==c"]).code == "scheduler_away"


def test_with_one_node_a_constraint_counts_too(ada, node, gpu) -> None:
    assert launched(ada, constraints=[f"node=={node.name}"]).node == node
    with pytest.raises(Problem, match="is so not of"):
        launched(ada, constraints=[f"node!={node.name}"])


@pytest.mark.parametrize(("policy", "chosen"), [("auto", "a"), ("spread", "a"), ("pack", "c"), ("soonest", "a")])
def test_the_setting_says_by_which_policy(ada, nodes, settings, policy, chosen) -> None:
    settings.GPUSHARE_PLACEMENT = policy
    for name, quota in {"a": 1, "b": 4, "c": 8}.items():
        make_container(ada, f"on-{name}", card(nodes[name]), quota=quota * GIB)
    made = launched(ada)
    assert made.node == nodes[chosen]
    assert made.node_reason.startswith(f"{chosen} ")
    assert "GiB" in made.node_reason


def test_soonest_knows_the_idle_who_gives_way_and_time_limits(ada, nodes, settings) -> None:
    settings.GPUSHARE_PLACEMENT = "soonest"
    Gpu.objects.update(free=GIB)
    long_ago = timezone.now() - timedelta(hours=1)

    def holds(name: str, **fields: Any) -> None:
        made = make_container(ada, f"on-{name}", card(nodes[name]), quota=15 * GIB, **{"started_at": long_ago} | fields)
        made.claims.update(granted=15 * GIB, used=15 * GIB)

    holds("a")
    holds("b", ttl_seconds=3720)
    holds("c", idle_since=timezone.now())
    first = launched(ada, gpu_memory=4 * GIB)
    assert first.node == nodes["c"]
    assert first.node_reason == (
        "c has it first: 1 GiB free, the rest within 15 s from on-c (15 GiB, idle); next is b: 1 GiB free, the rest "
        "within 2 min from on-b (15 GiB)."
    )
    settings.GPUSHARE_GIVE_WAY = "off"
    assert launched(ada, gpu_memory=4 * GIB).node == nodes["b"]


def test_soonest_does_not_count_on_an_idle_container_that_is_paused(ada, nodes, settings) -> None:
    """A paused one is never moved to host memory for others."""
    settings.GPUSHARE_PLACEMENT = "soonest"
    Node.objects.filter(name="a").update(drained_at=timezone.now())
    Gpu.objects.update(free=GIB)
    started = timezone.now() - timedelta(hours=1)
    for name, fields in {"b": {"ttl_seconds": 3720}, "c": {"idle_since": started, "paused_at": started}}.items():
        made = make_container(ada, f"on-{name}", card(nodes[name]), quota=15 * GIB, started_at=started, **fields)
        made.claims.update(granted=15 * GIB, used=15 * GIB)
    assert launched(ada, gpu_memory=4 * GIB).node == nodes["b"]


def test_soonest_counts_what_was_launched_a_moment_ago_as_taken(ada, nodes, settings) -> None:
    settings.GPUSHARE_PLACEMENT = "soonest"
    Node.objects.filter(name="c").update(drained_at=timezone.now())
    make_container(ada, "young", card(nodes["a"]), quota=12 * GIB)
    make_container(ada, "old", card(nodes["b"]), quota=13 * GIB, started_at=timezone.now() - timedelta(hours=1))
    made = launched(ada, gpu_memory=8 * GIB)  # both cards are free still
    assert made.node == nodes["b"]
    assert "a: 4 GiB free" in made.node_reason


def test_a_swarm_is_constrained_only_where_the_setting_names_a_policy(nodes, settings) -> None:
    for value, tells in {"auto": False, "spread": True, "pack": True, "soonest": True}.items():
        settings.GPUSHARE_PLACEMENT = value
        assert sites.tells_a_swarm() is tells


def test_of_a_swarm_s_hosts_those_that_have_room_are_looked_at_with_the_labels_that_they_have_there(nodes, ada) -> None:
    make_container(ada, "large", card(nodes["b"]), quota=8 * GIB)
    wish = sites.Wish(2 * GIB, 1, ("node.labels.rack==1",))
    chosen = sites.among({"a": {"rack": "2"}, "b": {"rack": "1"}, "c": {"rack": "1"}, "none-of-ours": {}}, wish)
    assert chosen is not None
    assert chosen.node == "c"
    assert sites.among({"b": {"rack": "1"}}, wish) == sites.Choice("b", "")
    assert sites.among({}, wish) is None


@pytest.mark.django_db(transaction=True)
def test_the_preview_and_a_forecast_say_where_it_would_go_and_why(client, ada, nodes) -> None:
    why = "a has the most room: 16 GiB is not promised on a GPU; next is b, where 16 GiB is not promised."
    found = {"fits": True, "behind": [], "earliest": None, "message": "Fits now."}
    browser = signed_in(ada)
    with commands_answered(result=found):
        answer = client.get("/api/v1/forecast/", {"gpu_memory": "2GiB"}).json()
        assert (answer["node"], answer["node_reason"]) == ("a", why)
        only = client.get("/api/v1/forecast/", {"gpu_memory": "2GiB", "constraints": "node!=a,node.labels.disk==ssd"})
        assert only.json()["node"] == "b"
        preview = browser.post("/launch/forecast/", {"gpu_memory": "2GiB"}).json()
        assert preview == {"text": f"Would go to a. {why} Fits now."}
        asked = browser.post("/launch/forecast/", {"gpu_memory": "2GiB", "constraints": "node!=a\nnode!=c"}).json()
        assert asked["text"].startswith("Would go to b. b is the only one of 3 nodes that is as asked")
        named = browser.post("/launch/forecast/", {"gpu_memory": "2GiB", "node": "b"}).json()
        assert named == {"text": "On b: Fits now."}
        wrong = browser.post("/launch/forecast/", {"gpu_memory": "2GiB", "constraints": "disk=ssd"}).json()
        assert (wrong["bad"], "not a constraint" in wrong["text"]) == (True, True)
    error = client.get("/api/v1/forecast/", {"gpu_memory": "2GiB", "constraints": "disk=ssd"}).json()["error"]
    assert error["field"] == "constraints"


def test_the_container_s_page_says_why_it_is_there(ada, nodes) -> None:
    made = launched(ada)
    page = signed_in(ada).get(f"/containers/{made.pk}/").content.decode()
    assert made.node_reason in page


def test_the_launch_form_says_which_node_takes_no_launches(ada, nodes) -> None:
    Node.objects.filter(name="b").update(drained_at=timezone.now())
    Node.objects.filter(name="c").update(seen_at=timezone.now() - timedelta(minutes=1))
    browser = signed_in(ada)
    for address in ("/launch/", "/launch/cards/"):
        text = browser.get(address).content.decode()
        assert "b takes no new containers: it is drained since" in text
        assert "c takes no new containers: its scheduler is away." in text
    assert "takes no new" not in browser.get("/launch/cards/?node=a").content.decode()

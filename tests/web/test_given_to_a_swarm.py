"""A launch that names no node goes to the scheduler that speaks for a Swarm; one that names one, past the Swarm."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from tests.support.machine import GIB, make_gpu, make_node
from tests.support.people import signed_in
from web.errors import Problem
from web.models import Allowance, Command, Container, Gpu, Node
from web.services import mounting, steering
from web.services.mounting import Mounting

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(ada: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(ada)
    return client


@pytest.fixture
def nodes() -> dict[str, Node]:
    """Three with a card each; the smallest speaks for a Swarm."""
    made = {name: make_node(name=name, engine="docker") for name in ("small", "large", "middle")}
    for index, (name, size) in enumerate({"small": 1, "large": 8, "middle": 4}.items()):
        make_gpu(made[name], index, capacity=size * GIB)
    Node.objects.filter(name="small").update(placer="swarm")
    return made


def launch(user: User, **spec: Any) -> Container:
    command = steering.launch(user, {"image": "local", "gpu_memory": GIB, **spec})
    assert command.container is not None
    assert command.node_id == command.container.node_id
    return command.container


def test_it_is_the_placers_to_give_whichever_node_has_the_most_room(ada: User, nodes: dict[str, Node]) -> None:
    made = launch(ada, gpu_memory=6 * GIB)  # more than its own node could ever give
    assert (made.node, made.node_reason) == (nodes["small"], "Swarm chooses the node.")
    by_gpu = launch(ada, gpus=["GPU-2"])
    assert (by_gpu.node, by_gpu.gpu_uuids) == (nodes["small"], ["GPU-2"])


def test_a_drained_placer_gives_on_what_is_for_others(ada: User, nodes: dict[str, Node]) -> None:
    Node.objects.filter(name="small").update(drained_at=timezone.now())
    assert launch(ada).node == nodes["small"]


def test_who_names_a_node_is_there(ada: User, nodes: dict[str, Node]) -> None:
    for name in ("large", "small"):
        made = launch(ada, node=name)
        assert (made.node, made.node_asked) == (nodes[name], name)


def test_without_a_placer_it_goes_where_the_most_room_is(ada: User, nodes: dict[str, Node]) -> None:
    Node.objects.update(placer="")
    assert launch(ada).node == nodes["large"]


def test_while_the_placer_is_away_it_is_refused_with_what_to_do(ada: User, nodes: dict[str, Node]) -> None:
    Node.objects.filter(name="small").update(seen_at=timezone.now() - timedelta(minutes=1))
    with pytest.raises(Problem) as caught:
        launch(ada)
    assert (caught.value.code, caught.value.status) == ("scheduler_away", 503)
    assert 'the scheduler of "small" is away' in caught.value.message
    assert not Command.objects.exists()
    assert launch(ada, node="middle").node == nodes["middle"]
    Node.objects.filter(name="middle").update(placer="swarm")  # another one that speaks for a manager
    assert launch(ada).node == nodes["middle"]


def test_the_cards_of_an_allowance_are_asked_for_by_name(ada: User, nodes: dict[str, Node]) -> None:
    Allowance.objects.create(user=ada, gpus=["GPU-0", "GPU-2"])
    made = launch(ada, gpu_memory=2 * GIB)
    assert (made.node, made.gpu_uuids) == (nodes["small"], ["GPU-2"])


def test_a_question_is_decided_as_the_launch_is(ada: User, nodes: dict[str, Node], api: APIClient) -> None:
    """A Swarm has labels that the appliance does not know: a forecast refused what the launch was taken for."""
    asked = {"gpu_memory": "6GiB", "constraints": "node.labels.disk==ssd"}
    assert (
        launch(ada, gpu_memory=6 * GIB, constraints=["node.labels.disk==ssd"]).node_reason == "Swarm chooses the node."
    )
    answer = api.get("/api/v1/forecast/", asked).json()
    assert (answer["fits"], answer["node"], answer["node_reason"]) == (None, "", "Swarm chooses the node.")
    assert answer["message"].startswith("Swarm chooses the node. It is started as soon as one has room")
    assert not Command.objects.filter(kind=Command.Kind.FORECAST).exists()
    assert signed_in(ada).post("/launch/forecast/", {"gpu_memory": "6GiB"}).json() == {"text": answer["message"]}
    assert steering.forecast(ada, 6 * GIB, node="large").node == nodes["large"]
    assert api.get("/api/v1/forecast/", {**asked, "node": "large"}).json()["error"]["code"] == "no_such_node"
    error = api.get("/api/v1/forecast/", {"gpu_memory": "9GiB"}).json()["error"]
    assert error["code"] == "over_capacity"


def test_a_volume_gets_cards_of_the_host_that_mounts_it(ada: User, nodes: dict[str, Node], settings: Any) -> None:
    """Also under an allowance that names cards of others, with more room."""
    settings.GPUSHARE_PLUGIN_PEOPLE = ["ada"]
    here, card = nodes["small"], Gpu.objects.get(uuid="GPU-0")
    ids = iter(range(1, 9))

    def mount() -> Container:
        asked = Mounting(
            id=UUID(int=next(ids)), mount=f"m{next(ids)}", name="by-docker", image="x", command=(),
            gpu_memory=GIB // 4, gpus=["GPU-0"],
        )  # fmt: skip
        return mounting.mount(here.pk, "v", {"gpu_memory": str(GIB // 4)}, asked)

    for gpus in (None, ["GPU-0", "GPU-1"]):
        Allowance.objects.update_or_create(user=ada, defaults={"gpus": gpus})
        made = mount()
        assert (made.node, [claim.gpu for claim in made.claims.all()]) == (here, [card])
    Allowance.objects.update(gpus=["GPU-1"])
    with pytest.raises(Problem):
        mount()
    with pytest.raises(Problem, match=r"no GPU GPU-1|There is no GPU"):
        mounting.make(here.pk, "w", {"gpus": "GPU-1"})

"""A compute weight or limit that is not kept is said where it was asked for, on the page, and under Attention."""

import pytest

from tests.support import rows
from tests.support.machine import commands_answered
from tests.support.people import client_for
from tests.support.site import person
from web.models import Claim, Container, Gpu
from web.services import attention, steering
from web.services.sharing import not_kept, price, ranks
from web.spec.requests import LaunchSpec
from web.spec.several_hosts import ELSEWHERE

pytestmark = pytest.mark.django_db
STOPPED_NOT = "Process 7: the lock failed: work that it had queued on the GPU did not end in time."


@pytest.fixture
def card():
    return rows.gpu(compute="turns", compute_why="GPUSHARE_COMPUTE says so.")


@pytest.fixture
def ann():
    return person("ann", "user")


def everywhere(ann, made) -> set[str]:
    """What each place says: REST, the page, Attention."""
    client = client_for(ann)
    rest = client.get(f"/api/v1/containers/{made.pk}/").json()["share_not_kept"]
    page = not_kept(Container.objects.get(pk=made.pk)) if rest else ""
    items = [item.message.partition(": ")[2] for item in attention.items() if item.kind == "no_turns"]
    client.force_login(ann)
    shown = client.get(f"/containers/{made.pk}/").content.decode()
    assert (page in shown.replace("&quot;", '"').replace("&#x27;", "'")) if page else "not kept" not in shown
    return {rest, page, *items}


@pytest.mark.parametrize(("field", "value"), [("compute_limit", 30), ("compute_weight", 300)])
def test_on_a_card_without_turns_neither_is_kept(ann, card, field, value):
    made = rows.container("training", ann, card, **{field: value})
    assert everywhere(ann, made) == {""}
    Gpu.objects.update(compute="shared", compute_why="An admin chose this.")
    (said,) = everywhere(ann, made)
    what = field.removeprefix("compute_")
    assert said == (
        f"Its compute {what} is not kept: containers on GPU 0 compute at once, without turns. An admin chose this."
    )


def test_of_one_that_could_not_be_stopped_until_it_was(ann, card):
    made = rows.container("training", ann, card, compute_limit=30, compute_weight=300, no_turns=STOPPED_NOT)
    (said,) = everywhere(ann, made)
    assert said == (
        f"Its compute limit and weight are not kept: the container could not be stopped for others. {STOPPED_NOT}"
    )
    Container.objects.update(no_turns="")
    assert everywhere(ann, made) == {""}


def test_where_nothing_was_asked_for_nothing_is_said_of_it(ann, card):
    Gpu.objects.update(compute="shared")
    assert everywhere(ann, rows.container("training", ann, card)) == {""}


@pytest.mark.django_db(transaction=True)
def test_the_answer_of_a_change_says_it(ann, card):
    made = rows.container("training", ann, card, compute_limit=30)
    client = client_for(ann)

    def answer() -> dict[str, str]:
        with commands_answered(message=""):
            return client.patch(f"/api/v1/containers/{made.pk}/", {"compute_limit": 30}, format="json").json()

    assert (answer()["message"], answer()["share_not_kept"]) == ("", "")
    Claim.objects.create(container=made, gpu=rows.gpu(1, compute="shared"), quota=1)
    assert "containers on GPU 1 compute at once" in answer()["message"]
    assert answer()["message"] == answer()["share_not_kept"]


def test_of_ranks_on_several_hosts_a_limit_is_refused_and_a_weight_is_not(ann, card):
    why = f"Process 7 (rank 0) works with 6 {ELSEWHERE} in containers of its owner."
    made = rows.container("training", ann, card, no_turns=why)
    refused = client_for(ann).patch(f"/api/v1/containers/{made.pk}/", {"compute_limit": 30}, format="json")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "cannot_limit")
    assert refused.json()["error"]["message"] == f"A GPU time limit cannot be kept. {why}"
    assert steering.change(ann, made, compute_weight=30).arguments == {"compute_weight": 30}


@pytest.mark.parametrize(
    "several",
    [
        {"command": ["torchrun", "--nnodes", "2", "train.py"]},
        {"command": ["torchrun", "--nnodes=1:4", "train.py"]},
        {"command": ["accelerate", "launch", "--num_machines=2", "train.py"]},
        {"env": {"PET_NNODES": "2"}},
    ],
)
def test_a_launch_that_names_several_hosts_cannot_have_a_limit(ann, card, several):
    spec = {"image": "local", "compute_limit": 30}
    refused = client_for(ann).post("/api/v1/containers/", spec | several, format="json")
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "compute_limit")
    assert "several hosts" in refused.json()["error"]["message"]
    LaunchSpec.parse(spec | {"command": ["torchrun", "--nnodes=1", "--nnodes", "x"], "env": {"PET_NNODES": ""}})


def test_ranks_are_answered_with_the_gpu_that_each_uses_and_shown(ann, card):
    made = rows.container("training", ann, card)
    other = rows.gpu(1)
    for gpu, used in ((card, (2, 0)), (other, (0, 2))):
        processes = [
            {"pid": 7 + rank, "used": size, "real": size, "uncapped": False, "ranks": [rank], "of": 2}
            for rank, size in enumerate(used)
        ]
        Claim.objects.update_or_create(container=made, gpu=gpu, defaults={"processes": processes, "quota": 2})
    shown = [{"rank": 0, "of": 2, "pid": 7, "gpu": card.uuid}, {"rank": 1, "of": 2, "pid": 8, "gpu": other.uuid}]
    client = client_for(ann)
    assert client.get(f"/api/v1/containers/{made.pk}/").json()["ranks"] == shown
    assert client.get("/api/v1/containers/").json()["results"][0]["ranks"] == shown
    client.force_login(ann)
    page = client.get(f"/containers/{made.pk}/").content.decode()
    assert ("8 (rank 1 of 2)" in page, page.count("(rank ")) == (True, 2)


@pytest.mark.parametrize(
    ("used", "numbers", "found"),
    [((2, 2), [0, 1], [(0, "a"), (1, "b")]), ((1, 2), [1], [(1, "b")]), ((2, 0), [0, 1], [(0, "a"), (1, "a")])],
    ids=["JAX has one on each card", "a context beside it is no rank", "both on one"],
)
def test_each_rank_is_answered_once(used, numbers, found):
    claims = [
        (gpu, [{"pid": 7, "used": size, "ranks": numbers, "of": 2}]) for gpu, size in zip("ab", used, strict=True)
    ]
    assert [(each["rank"], each["gpu"]) for each in ranks(claims)] == found


def test_what_being_movable_costs_is_said_where_it_costs_anything():
    assert "96%" in price(True, 2)
    assert price(True, 1) == price(False, 2) == ""

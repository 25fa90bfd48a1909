"""A compute weight or limit that is not kept is said where it was asked for, on the page, and under Attention."""

from __future__ import annotations

import pytest

from tests.support import rows
from tests.support.machine import commands_answered
from tests.support.people import client_for
from tests.support.site import person
from web.models import Claim, Container, Gpu
from web.services import attention
from web.services.sharing import not_kept

pytestmark = pytest.mark.django_db
STOPPED_NOT = "Process 7: the lock failed: what it had given the card to do was not done in time."


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
    Claim.objects.create(container=made, gpu=rows.gpu(1, compute="turns"), quota=1)
    assert answer()["message"] == (
        "Its compute limit is not kept while its processes wait for each other on several GPUs, as NCCL's do: "
        "they cannot be stopped one by one."
    )
    assert answer()["share_not_kept"] == ""  # it may be kept: nothing shows yet that it is not
    Gpu.objects.filter(index=1).update(compute="shared")
    assert "containers on GPU 1 compute at once" in answer()["message"]
    assert answer()["message"] == answer()["share_not_kept"]

"""Which GPUs somebody may use: named by index or UUID, chosen in the form by what people call them."""

import re

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from tests.support.machine import make_gpu
from tests.support.people import client_for, make_user, signed_in
from web.models import Allowance, Gpu, Node
from web.people.roles import Role

pytestmark = pytest.mark.django_db

BOX = re.compile(r'type="checkbox"\s+name="gpus"\s+value="([^"]*)"( checked)?>\s*<span>([^<]*)</span>')


@pytest.fixture
def cards(node):
    return [make_gpu(node), make_gpu(node, 1)]


@pytest.fixture
def boss():
    return make_user("boss", Role.ADMIN)


@pytest.fixture
def give(boss, ada):
    """Gives ada these GPUs by REST; what is stored then, or the error."""

    def asked(gpus):
        answer = client_for(boss).patch("/api/v1/people/ada/allowance/", {"gpus": gpus}, format="json")
        return answer.json()["gpus"] if answer.status_code == 200 else answer.json()["error"]

    return asked


@pytest.fixture
def form(boss, ada):
    """The boxes of ada's form, or what a POST of these ticks leads to."""
    browser = signed_in(boss)

    def boxes(ticked=None):
        if ticked is not None:
            browser.post("/people/ada/", {"do": "allowance", "gpus": ["", *ticked]})
        return {value: bool(on) for value, on, _ in BOX.findall(browser.get("/people/ada/").content.decode())}

    boxes.browser = browser
    return boxes


def test_a_card_is_named_by_its_index_or_its_uuid_and_stored_by_its_uuid(cards, give):
    assert give(["0"]) == [cards[0].uuid]
    assert give([cards[1].uuid, "0", "1", cards[0].uuid]) == [cards[1].uuid, cards[0].uuid]
    assert give([]) == []
    assert give(None) is None


@pytest.mark.parametrize("wrong", ["2", "-1", "99999999999999999999", "²", "٠", "0x0", "GPU-nowhere"])
def test_an_index_that_no_card_has_is_refused_and_nothing_changes(cards, give, wrong):
    give(["1"])
    error = give(["0", wrong])
    assert (error["code"], error["field"]) == ("unknown_gpu", "gpus")
    assert wrong in error["message"]
    assert Allowance.objects.get().gpus == [cards[1].uuid]


def test_an_index_that_two_hosts_have_is_asked_back_with_both_uuids(cards, give):
    other = Node.objects.create(name="other", engine="process", policy="fair", seen_at=timezone.now())
    twin = make_gpu(other, 7)
    Gpu.objects.filter(pk=twin.pk).update(index=0)
    message = give(["0"])["message"]
    assert message.startswith("Several hosts have a GPU 0: name its UUID.")
    assert cards[0].uuid in message
    assert f"{twin.uuid} of other" in message
    assert give([twin.uuid, "1"]) == [twin.uuid, cards[1].uuid]


def test_a_card_that_is_away_stays_allowed_and_its_index_means_the_card_that_is_here(cards, give):
    give(["0"])
    Gpu.objects.filter(pk=cards[0].pk).update(present=False)
    assert give([cards[0].uuid, "1"]) == [cards[0].uuid, cards[1].uuid]
    assert give(["0"])["code"] == "unknown_gpu"


def test_the_form_offers_each_card_and_an_unknown_one_that_is_stored_stays(cards, ada, form):
    Allowance.objects.create(user=ada, gpus=["GPU-of-before", cards[1].uuid])
    assert form() == {cards[0].uuid: False, cards[1].uuid: True, "GPU-of-before": True, "none at all": False}
    page = form.browser.get("/people/ada/").content.decode()
    names = {value: label for value, _, label in BOX.findall(page)}
    assert names[cards[1].uuid] == f"1 · {cards[1].name} · {cards[1].node.name}"
    assert names["GPU-of-before"] == "GPU-of-before · not here now"
    assert f"GPU-of-before · not here now; {names[cards[1].uuid]}" in page  # what is in force says it as well
    form(["GPU-of-before", cards[0].uuid])
    assert Allowance.objects.get().gpus == ["GPU-of-before", cards[0].uuid]


def test_no_tick_is_no_limit_and_none_at_all_is_none(cards, form):
    assert form([cards[0].uuid])[cards[0].uuid]
    assert form(["none at all"])["none at all"]
    assert Allowance.objects.get().gpus == []
    assert not any(form([]).values())
    assert Allowance.objects.get().gpus is None


def test_both_a_card_and_none_at_all_is_refused_with_the_ticks_kept(cards, form):
    page = form.browser.post("/people/ada/", {"do": "allowance", "gpus": ["", cards[0].uuid, "none at all"]})
    assert page.status_code == 400
    assert "Choose GPUs or “none at all”, not both." in page.content.decode()
    assert {value for value, on, _ in BOX.findall(page.content.decode()) if on} == {cards[0].uuid, "none at all"}
    assert not Allowance.objects.exists()


def test_a_form_without_the_field_leaves_the_cards_as_they_are(cards, ada, form):
    Allowance.objects.create(user=ada, gpus=[cards[0].uuid])
    form.browser.post("/people/ada/", {"do": "allowance", "containers": "3"})
    assert (Allowance.objects.get().gpus, Allowance.objects.get().containers) == ([cards[0].uuid], 3)


def test_a_groups_form_offers_the_same_boxes(cards, form):
    Allowance.objects.create(group=Group.objects.create(name="vision"), gpus=[])
    boxes = {value: bool(on) for value, on, _ in BOX.findall(form.browser.get("/groups/vision/").content.decode())}
    assert boxes == {cards[0].uuid: False, cards[1].uuid: False, "none at all": True}

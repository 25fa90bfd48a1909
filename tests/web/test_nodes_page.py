"""The pages of nodes: admins alone, by the same rules as REST, each deed in the audit log."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tests.support.machine import commands_answered, make_container, make_gpu, make_node
from tests.support.people import make_user
from web.models import AuditEntry, Gpu, Invitation, Node

pytestmark = pytest.mark.django_db


@pytest.fixture
def gpu2(db):
    return Node.objects.create(name="gpu2", seen_at=timezone.now() + timedelta(hours=1))  # it lives through a test


def post(browser: Client, **form: str) -> str:
    """What the page says after it."""
    return browser.post("/nodes/gpu2/", form, follow=True).content.decode()


def deeds() -> list[tuple[str, str, str]]:
    return list(AuditEntry.objects.exclude(action="sign-in").order_by("id").values_list("actor", "action", "subject"))


@pytest.mark.django_db(transaction=True)
def test_a_card_of_it_is_taken_out_of_service(browser, gpu2):
    card = make_gpu(gpu2)
    with commands_answered(message="GPU 0 takes no new containers."):
        assert "GPU 0 takes no new containers." in post(browser, gpu=card.uuid, do="drain", note="new fans")
    assert AuditEntry.objects.get(action="drain-gpu").detail == {"gpu": card.uuid, "reason": "new fans"}
    Gpu.objects.update(drained_at=timezone.now(), drain_reason="new fans")
    assert "Put GPU 0 back into service" in browser.get("/nodes/gpu2/").content.decode()
    assert browser.post("/nodes/gpu2/", {"gpu": "GPU-7", "do": "drain"}).status_code == 404
    assert "1 out of service" in browser.get("/nodes/").content.decode()
    assert "1 of them out of service" in browser.get("/nodes/gpu2/").content.decode()


def test_it_is_drained_and_takes_launches_again(browser, gpu2):
    assert "gpu2 takes no new launches from now on." in post(browser, do="drain", note="a new card")
    gpu2.refresh_from_db()
    assert gpu2.drained_at is not None
    assert AuditEntry.objects.get(action="drain-node").detail["note"] == "a new card"
    assert "gpu2 takes launches again." in post(browser, do="undrain")
    gpu2.refresh_from_db()
    assert gpu2.drained_at is None
    assert deeds() == [("boss", "drain-node", "gpu2"), ("boss", "undrain-node", "gpu2")]


def test_labels_are_set_and_taken_away_one_by_one(browser, gpu2):
    post(browser, do="label", label="rack", value="a")
    assert "disk=ssd" in post(browser, do="label", label="disk", value="ssd")
    post(browser, do="unlabel", label="rack")
    gpu2.refresh_from_db()
    assert gpu2.labels == {"disk": "ssd"}


@pytest.mark.parametrize(
    ("label", "value", "words"), [("no spaces", "a", "is not a label name"), ("rack", " ", "A label has a value")]
)
def test_a_bad_label_is_reported_with_what_was_typed_and_changes_nothing(browser, gpu2, label, value, words):
    answer = browser.post("/nodes/gpu2/", {"do": "label", "label": label, "value": value})
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert f'value="{label}"' in answer.content.decode()
    gpu2.refresh_from_db()
    assert gpu2.labels == {}


def test_it_is_removed_once_it_is_away_and_empty(browser, gpu2):
    assert "The scheduler of &quot;gpu2&quot; runs." in post(browser, do="remove")
    Node.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    container = make_container(make_user("ada"), "held")
    type(container).objects.update(node=gpu2)
    answer = post(browser, do="remove")
    assert "&quot;gpu2&quot; holds 1 container that may still run (held)" in answer
    assert 'name="force"' in answer
    type(container).objects.update(finished_at=timezone.now())
    assert "gpu2 is removed" in post(browser, do="remove")
    assert browser.get("/nodes/gpu2/").status_code == 404
    assert deeds() == [("boss", "node-removed", "gpu2")]


def test_what_it_held_is_lost_with_it_when_it_is_removed_by_force(browser, gpu2):
    Node.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    container = make_container(make_user("ada"), "held")
    type(container).objects.update(node=gpu2)
    assert "gpu2 is removed" in post(browser, do="remove", force="")
    container.refresh_from_db()
    assert (container.finished_at is not None, container.reason) == (True, "Lost with its node.")


@pytest.mark.parametrize(("name", "words"), [("gpu3", "Several nodes need PostgreSQL"), ("a b", "A node&#x27;s name")])
def test_an_invitation_that_cannot_be_is_refused_in_words(browser, name, words):
    answer = browser.post("/nodes/", {"name": name})
    assert answer.status_code in (400, 409)
    assert words in answer.content.decode()
    assert deeds() == []


def test_the_list_is_searched_and_what_is_away_comes_first(browser, gpu2):
    gone = make_node()
    Node.objects.filter(pk=gone.pk).update(seen_at=timezone.now() - timedelta(hours=1))
    content = browser.get("/nodes/").content.decode()
    assert content.index(f"/nodes/{gone.name}/") < content.index("/nodes/gpu2/")
    assert f"/nodes/{gone.name}/" not in browser.get("/nodes/?q=gpu2").content.decode()
    assert "Manage nodes" in browser.get("/").content.decode()


def test_the_pages_of_a_list_keep_what_was_searched_for(browser):
    for number in range(120):
        make_node(name=f"rack-{number:03}")
    content = browser.get("/nodes/?q=rack-").content.decode()
    assert 'href="?q=rack-&amp;page=2"' in content
    assert "Previous" not in content
    assert "Page 2 of " in browser.get("/nodes/?q=rack-&page=2").content.decode()


def test_what_no_form_asks_is_not_there(browser, gpu2):
    assert browser.post("/nodes/gpu2/", {"do": "explode"}).status_code == 404


def test_only_who_may_still_join_is_shown_as_invited(browser):
    now = timezone.now()
    for name, minutes in (("soon", 5), ("missed", -5)):
        Invitation.objects.create(name=name, digest=name, expires_at=now + timedelta(minutes=minutes))
    page = browser.get("/nodes/").content.decode()
    assert "soon (until" in page
    assert "missed" not in page

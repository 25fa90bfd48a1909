"""The buttons: what they ask, what they answer, and what they never show."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support import rows
from tests.support.answers import Refusal, answering, obey
from tests.support.site import person
from web.models import Command, Container


def row(page, container: Container):
    return page.locator(f'tr[data-id="{container.pk}"]')


def test_pausing_is_answered_and_can_be_undone(site, open_as):
    made = rows.container("train-7", person("ann"), rows.gpu(), used=0.5)
    page = open_as("ann")
    with answering(obey):
        row(page, made).get_by_role("button", name="Pause").click()
        expect(page.locator(".toast.good")).to_contain_text("train-7: pause done.")
        expect(row(page, made)).to_have_attribute("data-state", "paused")
        page.locator(".toast").get_by_role("button", name="Undo").click()
        expect(row(page, made)).to_have_attribute("data-state", "running")


def test_killing_asks_first_and_records_the_reason(site, open_as, shot):
    made = rows.container("train-7", person("ann"), rows.gpu(), used=0.5)
    page = open_as("ann")
    with answering(obey) as taken:
        row(page, made).get_by_role("button", name="Kill").click()
        expect(page.get_by_role("dialog")).to_contain_text("Kill train-7?")
        shot(page, "kill-dialog", whole=False)
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        assert taken == []
        row(page, made).get_by_role("button", name="Kill").click()
        page.get_by_label("Reason").fill("wrong data set")
        page.get_by_role("dialog").get_by_role("button", name="Kill").click()
        expect(row(page, made)).to_have_attribute("data-state", "killed")
    assert Command.objects.get().note == "wrong data set"


def test_enter_in_the_reason_does_what_the_dialog_asks(site, open_as):
    """Of every dialog that has a reason: it is one form, whose only submit button is its action."""
    ann = person("ann")
    made = rows.container("train-7", ann, rows.gpu(), used=0.5)
    page = open_as("ann")
    assert page.locator("dialog [type=submit]").evaluate_all("all => all.map(each => each.id)") == ["ask-yes"]
    with answering(obey) as taken:
        row(page, made).get_by_role("button", name="Kill").click()
        page.get_by_label("Reason").press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        assert taken == []
        row(page, made).get_by_role("button", name="Kill").click()
        page.get_by_label("Reason").fill("wrong data set")
        page.get_by_label("Reason").press("Enter")
        expect(row(page, made)).to_have_attribute("data-state", "killed")
    assert Command.objects.get().note == "wrong data set"


def test_enter_does_what_the_dialog_for_several_asks(site, open_as):
    card, ann = rows.gpu(), person("ann")
    made = [rows.container(f"job-{number}", ann, card, used=0.2) for number in range(2)]
    page = open_as("ann")
    with answering(obey):
        page.get_by_label("Select all shown").check()
        page.locator("#bulk").get_by_role("button", name="Kill").click()
        page.get_by_label("Reason").press("Enter")
        for container in made:
            expect(row(page, container)).to_have_attribute("data-state", "killed")


def test_a_refusal_says_why_and_stays(site, open_as):
    made = rows.container("train-7", person("ann"), rows.gpu(), used=0.5)

    def refuse(command: Command) -> str:
        raise Refusal("The engine is away: no such file /var/run/docker.sock")

    page = open_as("ann")
    with answering(refuse):
        row(page, made).get_by_role("button", name="Pause").click()
        expect(page.locator(".toast.bad")).to_contain_text("The engine is away")
    expect(row(page, made)).to_have_attribute("data-state", "running")


def test_many_are_paused_at_once(site, open_as):
    card, ann = rows.gpu(), person("ann")
    made = [rows.container(f"job-{number}", ann, card, used=0.2) for number in range(3)]
    page = open_as("ann")
    with answering(obey):
        page.get_by_label("Select all shown").check()
        expect(page.locator("#bulk-count")).to_have_text("3 selected")
        page.locator("#bulk").get_by_role("button", name="Pause").click()
        expect(page.locator(".toast.good")).to_contain_text("3 containers paused.")
        for container in made:
            expect(row(page, container)).to_have_attribute("data-state", "paused")


def test_keys_act_on_the_row_that_has_the_focus(site, open_as):
    card, ann = rows.gpu(), person("ann")
    older, newer = (rows.container(name, ann, card, used=0.2) for name in ("older", "newer"))
    page = open_as("ann")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")  # it hears keys by now
    with answering(obey):
        row(page, newer).locator(".name a").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("p")
        expect(row(page, older)).to_have_attribute("data-state", "paused")
        expect(row(page, newer)).to_have_attribute("data-state", "running")


@pytest.mark.parametrize(
    ("role", "own", "others"), [("viewer", 0, 0), ("user", 1, 0), ("operator", 1, 1), ("admin", 1, 1)]
)
def test_what_a_role_may_not_do_is_not_shown(site, open_as, role, own, others):
    card = rows.gpu()
    mine = rows.container("mine", person("me", role), card)
    theirs = rows.container("theirs", person("ann"), card)
    page = open_as("me", role=role)
    expect(row(page, mine).get_by_role("button", name="Kill")).to_have_count(own)
    expect(row(page, theirs).get_by_role("button", name="Kill")).to_have_count(others)
    expect(page.locator("main").get_by_role("link", name="Launch", exact=True)).to_have_count(
        0 if role == "viewer" else 1
    )


def test_a_forbidden_request_made_by_hand_is_refused(site, open_as):
    made = rows.container("theirs", person("ann"), rows.gpu())
    page = open_as("bob", role="user")
    page.evaluate(
        "id => htmx.ajax('POST', `/containers/${id}/kill/`, {target: '#toasts', swap: 'beforeend'})", str(made.pk)
    )
    expect(page.locator(".toast.bad")).to_contain_text("belongs to ann")
    assert not Command.objects.exists()


@pytest.mark.parametrize(
    ("role", "path", "form"),
    [
        ("viewer", "/launch/", {"image": "local"}),
        ("user", "/containers/{id}/change/", {"gpu_memory": "2GiB"}),
        ("user", "/containers/{id}/remove/", {}),
        ("user", "/containers/{id}/warn/", {}),
        ("user", "/containers/act/", {"action": "kill", "id": "{id}"}),
        ("user", "/queue/reorder/", {"id": "{id}"}),
        ("operator", "/queue/policy/", {"policy": "fifo"}),
    ],
)
def test_no_form_made_by_hand_does_what_its_role_may_not(site, open_as, role, path, form):
    made = rows.container(
        "theirs", person("ann"), rows.gpu(), **({"finished_at": rows.ago(9)} if "remove" in path else {})
    )
    page = open_as("me", role=role)
    token = page.evaluate("JSON.parse(document.body.getAttribute('hx-headers'))['X-CSRFToken']")
    answer = page.request.post(
        path.format(id=made.pk),
        form={name: value.format(id=made.pk) for name, value in form.items()},
        headers={"X-CSRFToken": token, "Referer": site.url},
    )
    assert "toast bad" in answer.text() or answer.status == 403
    assert not Command.objects.exists()
    assert page.request.post(path.format(id=made.pk), form=form).status == 403  # nor without the token

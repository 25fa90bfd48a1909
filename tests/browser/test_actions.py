"""The buttons: what they ask, what they answer, and what they never show."""

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


def test_killing_asks_first_and_enter_in_the_reason_does_what_the_dialog_asks(site, open_as, shot):
    """Of every dialog that has a reason: it is one form, whose only submit button is its action."""
    ann = person("ann")
    made = rows.container("train-7", ann, rows.gpu(), used=0.5)
    page = open_as("ann")
    assert page.locator("dialog [type=submit]").evaluate_all("all => all.map(each => each.id)") == ["ask-yes"]
    with answering(obey) as taken:
        row(page, made).get_by_role("button", name="Kill").click()
        expect(page.get_by_role("dialog")).to_contain_text("Kill train-7?")
        shot(page, "kill-dialog", whole=False)
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

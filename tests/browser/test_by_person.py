"""What a lab asks first: who holds what, and who waits; and the one way to stop all of one person."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser import scenes
from tests.support.answers import answering, obey
from web.models import Command


def test_the_overview_by_person_stands_in_the_address_and_stops_theirs_alone(site, open_as, shot):
    scenes.a_busy_card()
    page = open_as("op", role="operator")
    page.get_by_role("button", name="By person").click()
    people = page.locator("#by-person > li")
    expect(people.locator("summary a")).to_have_text(["ann", "bob"])
    page.reload()
    expect(people.first.locator("summary")).to_contain_text("2.5 GiB")
    expect(people.first.locator("summary")).to_contain_text("1 holding · 1 waiting")
    people.first.locator("summary b").click()
    expect(people.first.locator("details a").nth(1)).to_have_text("train-7")
    shot(page, "by-person")
    people.first.get_by_role("button", name="Stop all").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("#ask-names li")).to_have_count(2)
    with answering(obey):
        dialog.get_by_role("button", name="Stop 2").click()
        expect(page.locator(".toast.good")).to_contain_text("2 containers stopped.")
    assert {command.container.owner.username for command in Command.objects.filter(kind="kill")} == {"ann"}
    page.locator("#by-person summary").get_by_role("link", name="bob").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("bob")

"""What a lab asks first: who holds what, and who waits; and the one way to stop all of one person."""

from playwright.sync_api import expect

from tests.browser import scenes
from tests.support.answers import answering, obey
from web.models import Command


def test_the_overview_by_person_stands_in_the_address_and_stops_theirs_alone(site, open_as, shot):
    scenes.a_busy_card()
    page = open_as("op", role="operator")
    page.get_by_role("button", name="By person").click()
    people = page.locator("#by-person > li")
    expect(people.locator("> a")).to_have_text(["ann", "bob"])
    page.reload()
    expect(people.first.locator("summary")).to_contain_text("2.5 GiB")
    expect(people.first.locator("summary")).to_contain_text("1 holding · 1 waiting")
    people.first.locator("summary b").click()
    expect(people.first.locator("details a").first).to_have_text("train-7")
    shot(page, "by-person")
    people.first.get_by_role("button", name="Stop all").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("#ask-names li")).to_have_count(2)
    with answering(obey):
        dialog.get_by_role("button", name="Stop 2").click()
        expect(page.locator(".toast.good")).to_contain_text("2 containers stopped.")
    assert {command.container.owner.username for command in Command.objects.filter(kind="kill")} == {"ann"}
    page.locator("#by-person").get_by_role("link", name="bob", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("bob")


def test_the_switch_is_kept_and_a_phone_shows_the_figures_of_who_waits_too(site, open_as):
    scenes.a_busy_card()
    page = open_as("op", "/?view=people", size="phone", role="operator")
    for figures in page.locator("#by-person summary").all():
        whole, shown = figures.bounding_box(), figures.locator(".faint").bounding_box()
        assert shown["y"] + shown["height"] <= whole["y"] + whole["height"]
    page.get_by_role("button", name="List", exact=True).click()
    page.get_by_role("button", name="By person").click()
    page.goto("/")
    expect(page.locator("#by-person")).to_be_visible()
    page.get_by_role("button", name="List", exact=True).click()
    page.goto("/")
    expect(page.locator("#rows")).to_be_visible()
    expect(page.locator("#by-person")).to_be_hidden()

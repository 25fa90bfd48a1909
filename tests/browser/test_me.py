"""One's own page, by hand: a token, a password, the colours."""

import re

from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.site import person
from web.models import Token
from web.people import tokens


def test_a_token_is_made_copied_from_and_ended_with_the_keyboard_alone(site, open_as):
    rows.node()
    page = open_as("ann", "/me/")
    page.get_by_label("For", exact=True).focus()
    page.keyboard.type("wall display")
    page.keyboard.press("Tab")
    page.keyboard.type("read")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    key = page.locator("#key")
    expect(key).to_be_focused()
    expect(key).to_have_text(re.compile("^gps_"))
    assert key.bounding_box()["height"] < 50, "what is shown once stands on one line"
    made = tokens.find(key.text_content())
    assert (made.name, made.scope) == ("wall display", "read")
    page.get_by_role("button", name="End wall display").press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").press("Enter")
    assert Token.objects.filter(pk=made.pk).exists()
    page.get_by_role("button", name="End wall display").press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="End it").press("Enter")
    expect(page.locator("#tokens")).to_contain_text("is ended")
    expect(page.locator("#tokens-title")).to_be_focused()
    assert not Token.objects.exists()


def test_the_colours_are_chosen_and_the_button_in_the_frame_agrees(site, open_as):
    rows.node()
    page = open_as("ann", "/me/")
    page.get_by_label("Dark", exact=True).check()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    expect(page.get_by_label("Dark", exact=True)).to_be_checked()
    page.locator("#theme").click()
    expect(page.get_by_label("Light", exact=True)).to_be_checked()
    page.get_by_label("System setting").check()
    assert page.evaluate("document.documentElement.dataset.theme ?? ''") == ""
    page.reload()
    expect(page.get_by_label("System setting")).to_be_checked()


def test_my_containers_are_live_and_mine_alone(site, open_as):
    _, made = scenes.a_busy_card()
    page = open_as("ann", "/me/")
    table = page.locator("#rows tbody")
    expect(table).to_contain_text("train-7")
    expect(table).not_to_contain_text("notebook")
    rows.container("fresh", person("ann"), made["a"].claims.get().gpu, quota=0.1)
    expect(table).to_contain_text("fresh")
    expect(table).not_to_contain_text("notebook")


def test_who_has_no_container_is_led_to_the_form_and_not_to_a_filter(site, open_as):
    rows.node()
    page = open_as("ann", "/me/", role="user")
    empty = page.locator("#rows .empty")
    expect(empty).to_contain_text("You have no container now.")
    expect(empty.get_by_role("button")).to_have_count(0)
    page.get_by_label("Search").fill("train")
    expect(empty).to_contain_text("No container matches.")
    page.get_by_role("button", name="Show all").click()
    empty.get_by_role("link", name="Launch one").click()
    expect(page).to_have_url(re.compile("/launch/$"))

"""The page of notifications, the title that counts, and the desktop's own, on wish."""

import re

from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.events import EventKind, append
from tests.support.eventually import until
from web.models import Container, Happening, Receiver, Rule, Silence, Watch, Wish

SECRET = "a secret that is long enough"
# Chromium without a screen shows none: what it is asked for is written down instead.
DESKTOP = """
window.shown = [];
window.asked = 0;
window.Notification = class {
  static permission = "default";
  static async requestPermission() { window.asked++; return (this.permission = "granted"); }
  constructor(title, { body, tag }) { window.shown.push(body); }
  close() {}
};
"""


def test_an_admin_makes_a_receiver_a_rule_and_a_silence(site, open_as, shot):
    scenes.a_busy_card()
    page = open_as("root", "/notifications/", role="admin")
    new = page.locator("details", has_text="New receiver").locator("form")
    new.get_by_label("Name").fill("lab hook")
    new.get_by_label("Address (http").fill("hooks.lab/x")
    new.get_by_label("Secret").fill(SECRET)
    new.get_by_role("button", name="Add").click()
    expect(page.locator("#toasts")).to_contain_text("This has to be an address such as https://")
    expect(new.get_by_label("Name")).to_have_value("lab hook")  # what was typed stays
    new.get_by_label("Address (http").fill("https://hooks.lab/x")
    new.get_by_role("button", name="Add").click()
    expect(page.locator("main")).to_contain_text("The receiver is added. It needs a rule.")
    assert Receiver.objects.get().secret == SECRET
    assert SECRET not in page.content()

    rule = page.locator("details", has_text="New rule").locator("form")
    rule.get_by_label("waiting", exact=True).check()
    rule.get_by_label("After minutes").fill("-3")
    rule.get_by_role("button", name="Add").click()
    expect(page.locator("#toasts")).to_contain_text("greater than or equal to 0")
    rule.get_by_label("After minutes").fill("15")
    rule.get_by_label("Again every").fill("60")
    rule.get_by_role("button", name="Add").click()
    said = "lab hook gets waiting, info or higher, after 15 minutes; again every 60 minutes"
    expect(page.locator("main")).to_contain_text(said)
    made = Rule.objects.get()
    assert (made.kinds, made.minutes, made.repeat_minutes, made.resolved) == (["waiting"], 15, 60, True)

    page.locator("summary", has_text="New silence").click()
    page.get_by_label("Person").fill("ann")
    page.get_by_role("button", name="Silence", exact=True).click()
    expect(page.locator("main")).to_contain_text("Everything of ann until")
    assert Silence.objects.get().person == "ann"
    page.get_by_role("button", name="Send a test").click()
    expect(page.locator("main")).to_contain_text("A test: an admin asked")
    shot(page, "notifications-filled")


def test_a_person_chooses_their_notifications(site, open_as):
    scenes.a_busy_card()
    page = open_as("ann", "/notifications/")
    expect(page).to_have_url(re.compile(r"/me/#notifications$"))
    expect(page.get_by_role("heading", name="Receivers")).to_have_count(0)
    page.get_by_label("was killed").uncheck()
    page.get_by_label("Shortest wait to notify about, in minutes").fill("2.5")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("main")).to_contain_text("Saved.")
    wish = Wish.objects.get(user__username="ann")
    assert (wish.happenings, wish.goes_on_minutes) == ([each for each in Happening.values if each != "killed"], 2.5)
    expect(page.get_by_label("was killed")).not_to_be_checked()


def test_the_title_counts_what_needs_this_person(site, open_as):
    _, made = scenes.a_busy_card()
    carla, bob, admin = open_as("carla", role="user"), open_as("bob"), open_as("root", role="admin")
    expect(admin).to_have_title("(1) Overview · gpushare")  # bob is paused and keeps others waiting
    Container.objects.filter(pk=made["c"].pk).update(suspended_since=rows.ago(400))  # ann's
    expect(admin).to_have_title("(2) Overview · gpushare")  # and she waits for long
    expect(bob).to_have_title("(1) Overview · gpushare")
    expect(carla).to_have_title("Overview · gpushare")
    Container.objects.update(suspended_since=None)
    expect(admin).to_have_title("Overview · gpushare")


def test_the_desktop_tells_it_only_after_a_click_and_each_once(site, open_as):
    _, made = scenes.a_busy_card()
    page = open_as("ann")
    page.add_init_script(DESKTOP)
    page.goto("/me/")
    until(lambda: Watch.objects.exclude(event=None).exists())  # the server's own process looks, too
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    assert page.evaluate("window.asked") == 0
    page.get_by_role("button", name="Show notifications on this computer").click()
    expect(page.get_by_role("button", name="Stop notifications on this computer")).to_be_visible()
    assert page.evaluate("[window.asked, localStorage.notify]") == [1, "on"]

    Container.objects.filter(pk=made["c"].pk).update(suspended_since=rows.ago(400))
    until(lambda: page.evaluate("window.shown.length") == 1)
    assert page.evaluate("window.shown[0]").startswith('"evaluate" waits for memory.')
    append(made["c"], rows.ago(0), EventKind.ENDED, detail="exit code 0")
    Container.objects.filter(pk=made["c"].pk).update(suspended_since=None, finished_at=rows.ago(0), exit_code=0)
    until(lambda: page.evaluate("window.shown.length") == 2)
    assert page.evaluate("window.shown[1]") == '"evaluate" has ended: exit code 0'
    page.get_by_role("button", name="Stop notifications on this computer").click()
    assert page.evaluate("localStorage.notify ?? null") is None

"""A link that signs in, opened in a real browser: once, and nothing of its key stays in the address."""

from playwright.sync_api import expect

from tests.browser.test_pages import _look_at
from tests.support import rows
from tests.support.site import person
from web.people import links


def test_it_leads_to_the_overview_and_leaves_no_key_behind(site, open_as, shot):
    rows.gpu()
    key = links.make(person("admin", "admin"), loopback=True)
    page = open_as("", f"/enter/#{key}")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    assert page.url == f"{site.url}/"
    page.go_back()
    assert key not in page.url
    page.context.clear_cookies()
    page.goto("about:blank")
    page.goto(f"/enter/#{key}")
    expect(page.get_by_role("alert")).to_contain_text("This link is no longer valid")
    assert key not in page.url
    _look_at(page, shot, "enter-refused")
    page.get_by_role("link", name="Sign in with a password").click()
    expect(page.get_by_label("Password")).to_be_visible()


def test_without_its_end_it_says_so(site, open_as):
    page = open_as("", "/enter/")
    expect(page.get_by_role("status")).to_contain_text("Open the whole link")

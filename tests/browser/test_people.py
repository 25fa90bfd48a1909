"""People, groups and the audit log as an admin uses them. With the longest names: test_full_pages.py."""

import re

from django.contrib.auth.models import Group, User
from playwright.sync_api import expect

from tests.support import rows
from tests.support.site import person
from web import audit
from web.models import Verification
from web.people.roles import Role, role_of


def test_an_account_is_made_given_a_role_and_an_allowance_and_switched_off(site, open_as):
    rows.node()
    Group.objects.create(name="vision")
    page = open_as("boss", "/people/", role="admin")
    page.get_by_text("New account").click()
    page.get_by_label("Name", exact=True).fill("a b")
    page.get_by_role("button", name="Make the account").click()
    expect(page.locator("#person-username-hint")).to_contain_text("valid username")
    page.get_by_label("Name", exact=True).fill("ada@lab.example")
    page.get_by_label("with a generated password").check()
    page.get_by_role("button", name="Make the account").click()
    expect(page.locator("#key")).to_have_text(re.compile(r"^[\w-]{16}$"))
    assert page.locator("#key").bounding_box()["height"] < 50, "what is shown once stands on one line"
    page.get_by_role("link", name="ada@lab.example").first.click()
    page.get_by_label("Role", exact=True).select_option("operator")
    page.get_by_label("vision").check()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".banner.good")).to_contain_text("changed")
    page.get_by_role("textbox", name="GPU memory").fill("lots")
    page.get_by_label("Images").fill("lab/*\nlocal")
    page.get_by_role("button", name="Save the allowance").click()
    expect(page.locator("#allowance-gpu_memory-hint")).to_contain_text("is not a size")
    expect(page.get_by_label("Images")).to_have_value("lab/*\nlocal")
    page.get_by_role("textbox", name="GPU memory").fill("40 GiB")
    page.get_by_role("button", name="Save the allowance").click()
    expect(page.locator(".limits")).to_contain_text("Set for this person.")
    expect(page.get_by_role("textbox", name="GPU memory")).to_have_value("40GiB")
    ada = User.objects.get(username="ada@lab.example")
    assert (ada.allowance.gpu_memory, ada.allowance.images) == (40 * rows.GIB, ["lab/*", "local"])
    assert (role_of(ada), list(ada.groups.filter(name="vision").values_list("name", flat=True))) == (
        Role.OPERATOR,
        ["vision"],
    )
    page.wait_for_load_state()  # its scripts have run, which ask first
    page.get_by_role("button", name="Disable the account").press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Disable").press("Enter")
    expect(page.locator(".title .tag.bad")).to_have_text("disabled")
    ada.refresh_from_db()
    assert not ada.is_active


def test_a_group_is_made_filled_emptied_and_deleted(site, open_as):
    rows.node()
    person("ada")
    page = open_as("boss", "/people/", role="admin")
    page.get_by_label("New group").fill("vision")
    page.get_by_role("button", name="Create the group").click()
    page.get_by_label("Add members").fill("ada nobody")
    page.get_by_role("button", name="Add").click()
    expect(page.locator(".error")).to_contain_text('no account "nobody"')
    page.get_by_label("Add members").fill("ada")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("#members-title")).to_have_text("1 member")
    page.get_by_role("button", name="Remove ada").click()
    expect(page.locator("#members-title")).to_have_text("0 members")
    page.wait_for_load_state()  # its scripts have run, which ask first
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(page.locator(".banner.good")).to_contain_text("is deleted")
    assert not Group.objects.filter(name="vision").exists()


def test_the_log_is_searched_paged_and_verified(site, open_as):
    rows.node()
    for number in range(60):
        audit.record("ann", "launch-refused", f"job-{number}", image="local")
    page = open_as("boss", "/audit/", role="admin")
    page.get_by_label("Target").fill("job-3")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".log-table tbody tr")).to_have_count(1)
    page.goto("/audit/")
    expect(page.locator(".log-table tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_text("No older entries.")).to_be_visible()
    page.get_by_role("button", name="Verify").press("Enter")
    expect(page.locator("#verified .banner.good")).to_contain_text("The audit log is whole")
    assert page.locator("#verified .banner.good").bounding_box()["width"] > 300, "not a letter on each line"
    assert Verification.objects.get().ok

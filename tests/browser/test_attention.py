"""What needs somebody now, above everything on the overview."""

import re

from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.answers import answering, obey
from web.models import Claim, Command, Container


def test_it_is_one_calm_line_or_what_each_person_can_do(site, open_as, shot):
    _, made = scenes.a_busy_card()
    page = open_as("bob")
    expect(page.locator("#calm")).to_have_text("Nothing needs attention.")
    Claim.objects.filter(container=made["c"]).update(waiting=1 << 30)
    Container.objects.filter(pk=made["c"].pk).update(suspended_since=rows.ago(400))
    people = page.locator("#attention > li")
    expect(people).to_have_count(1)
    expect(page.locator("#calm")).to_be_hidden()
    bobs = people.first
    expect(bobs.locator("h3")).to_have_text("bob")
    expect(bobs).to_contain_text('"idle-shell" is paused and holds')
    anns = bobs.locator(".hung > li")
    expect(anns).to_contain_text('"evaluate" waits for memory. Needs 1.4 GiB; 717 MiB is free.')
    expect(anns).to_contain_text("ann")
    expect(anns.locator("button")).to_have_count(0)  # not bob's
    shot(page, "attention")
    with answering(obey), page.expect_response(re.compile("/resume/$")):
        bobs.get_by_role("button", name="Resume").click()
    assert Command.objects.get(kind="resume").container == made["e"]
    Container.objects.update(suspended_since=None)
    expect(page.locator("#calm")).to_be_visible()
    expect(people).to_have_count(0)

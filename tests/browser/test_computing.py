"""Who computes how much of a GPU's time, and how that is shared, as a browser shows it."""

import re

from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.answers import answering, obey
from web.models import Claim, Command, Container, UsageSample


def test_the_band_and_the_chips_say_who_had_what_and_not_that_anybody_is_suspended(site, open_as, shot):
    _, made = scenes.a_card_in_turns()
    page = open_as("ann")
    band = page.locator("article.card .band")
    expect(band).to_have_attribute("aria-label", "In the last minute train-7 computed 75 %, notebook computed 25 %")
    widths = band.locator("span").evaluate_all("parts => parts.map(part => parseFloat(part.style.width))")
    assert widths == [75, 25]
    a_colour = "element => getComputedStyle(element).backgroundColor"
    assert band.locator("span").first.evaluate(a_colour) == page.locator(".bar .used").first.evaluate(a_colour)
    expect(page.locator("article.card .mode")).to_have_text("in turns")
    chips = {name: page.locator("tr[data-id]", has_text=name).locator(".chip") for name in ("notebook", "evaluate")}
    expect(chips["notebook"]).to_have_text("In turns, 25 %")
    expect(chips["notebook"]).to_have_attribute("title", re.compile("used 25 %, fair share 26 %, waited 45 s"))
    expect(chips["evaluate"]).to_have_text("Suspended")
    assert chips["notebook"].evaluate(a_colour) != chips["evaluate"].evaluate(a_colour)
    shot(page, "turns")
    Container.objects.filter(pk=made["b"].pk).update(started_at=rows.ago(30))
    expect(chips["notebook"]).to_have_text(
        re.compile("In turns, (50|[34][0-9]|2[6-9]) %")
    )  # of its life: no minute yet


def test_where_nobody_can_tell_there_is_no_band(site, open_as):
    scenes.a_busy_card()
    page = open_as("ann")
    expect(page.locator("article.card .mode")).to_have_text("shared")
    expect(page.locator("article.card .band")).to_be_hidden()
    expect(page.locator("button.mode")).to_have_count(0)  # admins say how it is shared


def test_an_admin_changes_how_a_gpu_is_shared(site, open_as):
    scenes.a_card_in_turns()
    page = open_as("admin")
    page.get_by_role("button", name="in turns").click()
    expect(page.locator("#ask-title")).to_have_text("No turns on GPU 0?")
    with answering(obey), page.expect_response(re.compile("/compute/$")):
        page.get_by_role("button", name="Change it").click()
    command = Command.objects.get(kind="compute")
    assert command.arguments == {"gpu": "GPU-sim-0", "compute": "shared"}


def test_a_containers_page_says_what_it_had_and_takes_another_weight(site, open_as, shot):
    card, made = scenes.a_card_in_turns()
    scenes.a_life(made["a"], card)
    UsageSample.objects.filter(container=made["a"]).update(had=0.6, due=0.5, held_back=0.3)
    page = open_as("ann", f"/containers/{made['a'].pk}/")
    cells = page.locator("#computing tbody td")
    expect(cells).to_have_text(["0 · turns", "75 %", "74 %", "25 %", "15 min 5 s", "14 min 50 s", "5 min 1 s"])
    expect(page.locator("#computed canvas")).to_be_visible()
    shot(page, "computing")
    Claim.objects.filter(container=made["a"].pk).update(had=910)
    expect(cells.nth(4)).to_have_text("15 min 10 s")
    page.get_by_label("Weight").fill("300")
    page.get_by_label("GPU time limit (%)").fill("none")
    with answering(obey), page.expect_response(re.compile("/change/$")):
        page.locator("#computing").get_by_role("button", name="Set").click()
    command = Command.objects.get(kind="change")
    assert command.arguments == {"compute_weight": 300, "compute_limit": None}
    Container.objects.filter(pk=made["a"].pk).update(no_turns="It could not be stopped: its driver call hung.")
    expect(page.locator('[data-field="no_turns"]')).to_have_text("It could not be stopped: its driver call hung.")


def test_the_history_shows_who_computed_then(site, open_as):
    card, made = scenes.a_card_in_turns()
    UsageSample.objects.bulk_create(
        UsageSample(at=rows.ago(60 * ago).replace(second=0, microsecond=0), span=60, gpu=card, container=made["a"],
                    used=1 << 30, peak=1 << 30, had=36)
        for ago in range(-5, 2)  # as the scheduler goes on to write them
    )  # fmt: skip
    page = open_as("ann", "/history/")
    expect(page.locator("#replay")).to_have_attribute("data-ready", "true")
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    expect(page.locator("#then-band")).to_have_attribute("aria-label", "Then train-7 computed 60 %")

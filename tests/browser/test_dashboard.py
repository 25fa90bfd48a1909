"""The overview: who holds what, who waits, and the buttons."""

from playwright.sync_api import expect

from tests.browser import scenes
from tests.browser.scenes import a_busy_card
from tests.support import rows
from tests.support.site import person
from web.models import Gpu, UsageSample


def test_overview_shows_bars_queue_and_states(site, open_as):
    a_busy_card()
    page = open_as("admin")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("article.card")).to_have_count(1)
    expect(page.locator(".card .bar .used")).to_have_count(4)
    expect(page.locator("#queue li .name")).to_have_text(["evaluate", "sweep-12"])
    expect(page.locator("tr[data-id]")).to_have_count(5)
    for state, count in (("running", "2"), ("suspended", "2"), ("paused", "1")):
        expect(page.locator(f'#totals [data-state="{state}"] b')).to_have_text(count)


def test_a_bar_tells_what_is_used_in_hand_unexplained_foreign_and_free(site, open_as, shot):
    gib = rows.GIB
    # Half of what is foreign is known to be train-7's own: it is not taken off the card twice.
    card = rows.gpu(total=8 * gib, most=7 * gib, capacity=6 * gib, free=6 * gib, foreign=gib, utilisation=87,
                    temperature=64, power=311.4)  # fmt: skip
    made = rows.container("train-7", person("ann"), card, quota=4, used=2, granted=3)
    made.claims.update(unexplained=gib // 2)
    rows.gpu(1, total=16 * gib, name="NVIDIA H200", simulated=False, utilisation=None, temperature=None, power=None)
    scenes.an_hour_of(card)
    page = open_as("ann")
    first, second = page.locator("article.card").nth(0), page.locator("article.card").nth(1)
    parts = first.locator(".bar > *")
    expect(parts).to_have_count(5)
    shown = parts.evaluate_all("parts => parts.map(part => [part.className, parseFloat(part.style.width), part.title])")
    assert shown == [
        ["used", 25, "train-7 uses 2 GiB"],
        ["idle", 12.5, "train-7 has reserved 1 GiB that it does not use yet"],
        ["unexplained", 6.25, "512 MiB not accounted for"],
        ["foreign", 6.25, "512 MiB used by other programs"],
        ["kept", 12.5, "1 GiB kept for the driver"],
    ]
    legend = {"train-7": "2 GiB / 4 GiB", "reserved, not yet used": "1 GiB", "not accounted for": "512 MiB",
              "other programs": "512 MiB", "kept for the driver": "1 GiB", "free": "3 GiB"}  # fmt: skip
    for name, figures in legend.items():
        expect(first.locator(".legend li", has_text=name)).to_contain_text(figures)
    expect(first.locator(".vitals")).to_have_text("87 % busy  ·  64 °C  ·  311 W")
    expect(first.locator("p.held")).to_have_text(
        "2 GiB held + 1 GiB reserved, not yet used + 3 GiB free + 2 GiB unavailable = 8 GiB"
    )
    expect(first.locator(".chart canvas")).to_be_visible()
    expect(first.locator(".simulated")).to_be_visible()
    expect(second.locator(".simulated")).to_be_hidden()
    expect(second.locator(".vitals")).to_be_empty()
    expect(second.locator(".bar")).to_have_attribute("aria-label", "all free")
    shot(page, "overview-two-gpus")


def test_on_a_capped_card_foreign_memory_takes_what_does_not_fit_beside_the_cap(site, open_as):
    card = rows.gpu(total=5 * rows.GIB, foreign=10 * rows.GIB)  # of 80 GiB
    rows.container("sure", person("ann"), card, quota=3, used=1)
    Gpu.objects.update(free=2 * rows.GIB)  # the quota of `sure` is guaranteed
    page = open_as("ann")
    expect(page.locator("p.held")).to_have_text("1 GiB held + 2 GiB guaranteed, not yet used + 2 GiB free = 5 GiB")
    titles = page.locator(".card .bar > *").evaluate_all("parts => parts.map(part => part.title)")
    assert titles == ["sure uses 1 GiB", "2 GiB reserved for guaranteed containers"]
    page.goto(page.url + "launch/")
    page.locator("#f-gpu_memory").fill("15GiB")
    expect(page.locator(".verdict")).to_have_text("never: the GPU has 5 GiB at most")


def test_free_is_one_number_on_the_overview_and_beside_a_launch(site, open_as):
    card = rows.gpu(total=8 * rows.GIB, capacity=int(7.5 * rows.GIB), free=int(7.5 * rows.GIB), foreign=rows.GIB // 2)
    rows.container("lent", person("ann"), card, quota=6, used=4, granted=6.5)
    page = open_as("ann")
    text = "4 GiB held + 2.5 GiB reserved, not yet used + 1 GiB free + 0.5 GiB unavailable = 8 GiB"
    expect(page.locator("p.held")).to_have_text(text)
    page.goto(page.url + "launch/")
    page.locator("#f-gpu_memory").fill("3GiB")
    expect(page.locator(".verdict")).to_have_text("fits: 1 GiB free, 2.5 GiB reserved but unused")
    page.locator("#f-gpu_memory").fill("4GiB")
    expect(page.locator(".verdict")).to_have_text("would wait: 1 GiB free, 2.5 GiB reserved but unused")


def test_a_container_has_the_same_colour_everywhere(site, open_as):
    card, made = a_busy_card()
    scenes.a_life(made["c"], card)
    a_colour = "element => getComputedStyle(element).backgroundColor"
    page = open_as("ann")
    places = [
        page.locator(f'.bar [data-key="{made["c"].pk} used"]'),
        page.locator(f'.legend [data-key="{made["c"].pk}"] .mark'),
        page.locator(f'#queue [data-key="{made["c"].pk}"] .mark'),
        page.locator(f'tr[data-id="{made["c"].pk}"] .mark'),
        page.locator(f'tr[data-id="{made["c"].pk}"] .meter i'),
    ]
    colours = {place.evaluate(a_colour) for place in places}
    page.goto(f"/containers/{made['c'].pk}/")
    colours.add(page.locator(".title .mark").evaluate(a_colour))
    page.goto("/queue/")
    colours.add(page.locator(f'#queue [data-key="{made["c"].pk}"] .mark').evaluate(a_colour))
    later = [UsageSample(at=rows.ago(-second), gpu=card, container=made["c"], used=1, peak=1) for second in range(60)]
    UsageSample.objects.bulk_create(later)  # as the scheduler goes on to write them
    page.goto("/history/")
    colours.add(page.locator(f'#then-bar [data-key="{made["c"].pk}"]').evaluate(a_colour))
    assert len(colours) == 1
    assert len({container.colour for container in made.values()}) == len(made)


def test_an_empty_appliance_teaches_the_first_step(site, open_as, shot):
    rows.gpu()
    page = open_as("user")
    expect(page.get_by_role("link", name="Launch the first one")).to_be_visible()
    expect(page.locator("#no-queue")).to_be_visible()
    shot(page, "overview-first")

"""What the overview's figures add up to."""

import random
import re

from playwright.sync_api import expect

from tests.browser import scenes
from tests.support import rows
from tests.support.site import person
from web.models import Gpu


def test_what_is_held_free_and_outside_us_is_the_card_at_sight(site, open_as):
    """Figures that do not come out even, on cards of every size: the ones that are read have the sum that is read."""
    dice = random.Random(11)
    for index, total in enumerate((5, 24, 80, 141)):
        whole = total * rows.GIB
        most = whole - 128 * 2**20
        capacity = most - dice.randrange(rows.GIB)
        card = rows.gpu(index, whole, most=most, capacity=capacity, free=capacity, foreign=most - capacity)
        for number in range(5):
            used = dice.uniform(0.1, total / 8)
            rows.container(f"c{index}-{number}", person("ann"), card, quota=total / 4, used=used, granted=used * 1.1)
        Gpu.objects.filter(pk=card.pk).update(free=dice.randrange(Gpu.objects.get(pk=card.pk).free))  # some is reserved
    page = open_as("ann")
    expect(page.locator(".card .held")).to_have_count(4)
    for text in page.locator(".card .held").all_inner_texts():
        parts, total = text.split(" = ")
        figures = [float(each) for each in re.findall(r"([\d.]+) GiB", parts)]
        assert len(figures) == 5, text
        assert round(sum(figures), 2) == float(total.removesuffix(" GiB")), text
        assert re.search(r"held .* reserved, not yet used .* guaranteed, not yet used .* free .* unavailable", parts), (
            text
        )


def test_a_row_tells_what_a_container_computes_and_its_ram_and_follows_them(site, open_as):
    _, made = scenes.a_busy_card()
    made["a"].claims.update(utilisation=37)
    type(made["a"]).objects.filter(pk=made["a"].pk).update(cpus_used=1.25, memory_used=3 * rows.GIB)
    page = open_as("ann")
    load = page.locator(f'tr[data-id="{made["a"].pk}"] .load')
    expect(load).to_have_text("37 % / 1.3 / 3 GiB")
    expect(page.locator(f'tr[data-id="{made["b"].pk}"] .load')).to_have_text("– / – / –")
    made["a"].claims.update(utilisation=90)
    expect(load).to_have_text("90 % / 1.3 / 3 GiB")
    page.goto(f"/containers/{made['a'].pk}/")
    expect(page.locator('[data-field="host"]')).to_have_text("1.3 processors busy, 3 GiB of RAM")
    expect(page.locator('[data-field="utilisation"]')).to_have_text("90 %")
    type(made["a"]).objects.filter(pk=made["a"].pk).update(cpus_used=0.5)
    expect(page.locator('[data-field="host"]')).to_have_text("0.5 processors busy, 3 GiB of RAM")


def test_beyond_ten_colours_a_pattern_tells_containers_apart(site, open_as):
    card, owner = rows.gpu(total=80 * rows.GIB), person("ann")
    made = [rows.container(f"job-{number}", owner, card, used=1) for number in range(12)]
    assert [each.colour for each in made] == list(range(12))  # none twice
    page = open_as("ann")
    bars = page.locator(".card .bar .used")
    expect(bars).to_have_count(12)
    look = "each => { const s = getComputedStyle(each); return s.backgroundColor + ' ' + s.backgroundImage; }"
    looks = [bars.nth(number).evaluate(look) for number in range(12)]
    assert len(set(looks)) == 12
    assert looks[0].endswith(" none")
    assert looks[10].split(" repeating")[0] == looks[0].removesuffix(" none")  # the same colour, with a pattern

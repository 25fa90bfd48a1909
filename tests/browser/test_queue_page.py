"""The queue's own page: another order tried by hand before it is asked for, and the policy."""

import pytest
from playwright.sync_api import expect

from tests.support import rows
from tests.support.answers import answering, obey
from tests.support.eventually import until
from tests.support.site import person
from web.models import Command, Container


@pytest.fixture
def waiting(site):
    card, ann = rows.gpu(), person("ann")
    rows.container("holder", ann, card, quota=5, used=5)
    return [
        rows.container(name, ann, card, suspended_since=rows.ago(90 - 30 * place), queue_position=place,
                       queue_reason=f"Needs {place} GiB; 0 bytes is free.")
        for place, name in enumerate(("early", "middle", "late"), 1)
    ]  # fmt: skip


def names(page):
    return page.locator("#queue .name")


def test_rows_are_dragged_and_the_effect_is_shown_first(waiting, open_as, shot):
    page = open_as("boss", "/queue/", role="operator")
    expect(names(page)).to_have_text(["early", "middle", "late"])
    page.locator("#queue li", has_text="late").drag_to(page.locator("#queue li", has_text="early"))
    expect(names(page)).to_have_text(["late", "early", "middle"])
    expect(page.locator("#order-preview")).to_have_text("late: from 3 to 1, tried before early, middle")
    shot(page, "queue-preview")
    assert not Command.objects.exists()
    page.get_by_role("button", name="Discard").click()
    expect(names(page)).to_have_text(["early", "middle", "late"])
    expect(page.locator("#order-preview")).to_be_hidden()


def test_buttons_move_a_row_and_the_whole_order_is_sent(waiting, open_as):
    page = open_as("boss", "/queue/", role="operator")
    page.locator("#queue li", has_text="late").get_by_role("button", name="Move up").click()
    expect(names(page)).to_have_text(["early", "late", "middle"])
    with answering(obey):
        page.get_by_role("button", name="Apply this order").click()
        expect(page.locator(".toast.good")).to_contain_text("reorder done")
    early, middle, late = (str(container.pk) for container in waiting)
    assert Command.objects.get().arguments == {"containers": [early, late, middle]}


def test_who_is_served_while_an_order_is_tried_leaves_it(waiting, open_as):
    page = open_as("boss", "/queue/", role="operator")
    page.locator("#queue li", has_text="late").focus()
    page.keyboard.press("Alt+ArrowUp")
    expect(names(page)).to_have_text(["early", "late", "middle"])
    Container.objects.filter(pk=waiting[0].pk).update(suspended_since=None, queue_position=None, queue_reason="")
    expect(names(page)).to_have_text(["late", "middle"])
    expect(page.locator("#order-preview")).to_contain_text("late: from 2 to 1")


def test_the_policy_is_set_and_set_back(waiting, open_as):
    page = open_as("boss", "/queue/", role="admin")
    with answering(obey):
        page.get_by_label("best-fit").check()
        page.get_by_role("button", name="Set the policy").click()
        expect(page.locator(".toast.good")).to_contain_text("policy done")
        page.locator(".toast").get_by_role("button", name="Undo").click()
        until(lambda: Command.objects.exclude(done_at=None).count() == 2)
    asked = [command.arguments for command in Command.objects.order_by("created_at")]
    assert asked == [{"policy": "best-fit"}, {"policy": "fair"}]


def test_who_waits_for_a_node_stands_apart_with_the_swarms_own_reason(waiting, open_as):
    why = "no suitable node (insufficient resources on 3 nodes)"
    for place, name in enumerate(("resnet", "llama")):
        Container.objects.create(
            name=name, owner=person("ann"), image="pytorch/pytorch:2.4", engine="swarm", queue_reason=why,
        )  # fmt: skip
        Container.objects.filter(name=name).update(created_at=rows.ago(600 - 60 * place))
    page = open_as("ann", "/queue/", role="user")
    expect(page.locator("#without-node .name")).to_have_text(["resnet", "llama"])
    expect(page.locator("#without-node .why")).to_have_text([why, why])
    expect(page.locator("#without-node time").first).to_contain_text("10 min")
    expect(names(page)).to_have_text(["early", "middle", "late"])
    Container.objects.filter(engine="swarm").update(node=rows.node(), started_at=rows.ago(0), queue_reason="")
    expect(page.locator("#placeless")).to_be_hidden()


def test_of_hundreds_the_foremost_stand_there_and_how_many_more_there_are(site, open_as, shot):
    card, ann = rows.gpu(), person("ann")
    for place in range(1, 206):
        rows.container(f"train-{place}", ann, card, suspended_since=rows.ago(900 - place), queue_position=place,
                       queue_reason="Needs 3 GiB; 0 bytes is free.")  # fmt: skip
    page = open_as("boss", "/queue/", role="operator")
    expect(names(page)).to_have_count(200)
    expect(page.locator("#queue-more")).to_have_text("and 5 more")
    Container.objects.filter(queue_position__lte=10).update(suspended_since=None, queue_position=None)
    expect(names(page)).to_have_count(195)
    expect(names(page).last).to_have_text("train-205")
    expect(page.locator("#queue-more")).to_be_hidden()

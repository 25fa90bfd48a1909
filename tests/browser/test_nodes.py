"""The overview of several nodes: in sum, the worst first, searched, one chosen, and a map of cards. With one node it is
as it was."""

from django.utils import timezone
from playwright.sync_api import expect

from tests.support import rows
from tests.support.site import person
from web.models import Claim, Container, Gpu, Node

GIB = 2**30
NODES, CARDS = 300, 8


def node(name: str, cards: int = 2, **fields):
    made = Node.objects.create(
        name=name, engine="process", policy="fair", seen_at=fields.pop("seen_at", rows.node().seen_at), **fields
    )
    size = {"total": 80 * GIB, "capacity": 80 * GIB, "most": 80 * GIB, "free": 80 * GIB}
    Gpu.objects.bulk_create(
        Gpu(node=made, uuid=f"GPU-{name}-{index}", index=index, name="H100", **size) for index in range(cards)
    )
    return made


def held(on: Node, owner, gib: int, count: int = 1, **fields):
    """Containers that hold so much each, on one card after the other."""
    cards = list(on.gpus.order_by("index"))
    made = Container.objects.bulk_create(
        Container(name=f"{on.name}-{number}", owner=owner, image="local", node=on, colour=number % 40,
                  started_at=timezone.now(), created_at=timezone.now(), **fields)
        for number in range(count)
    )  # fmt: skip
    Claim.objects.bulk_create(
        Claim(container=each, gpu=cards[number % len(cards)], quota=gib * GIB, used=gib * GIB, granted=gib * GIB,
              waiting=GIB if fields.get("suspended_since") else 0)
        for number, each in enumerate(made)
    )  # fmt: skip


def test_one_node_has_no_map_and_no_word_of_nodes(site, open_as):
    card = rows.gpu()
    rows.container("train", person("ada", "user"), card)
    page = open_as("ada", role="user")
    expect(page.locator("article.card")).to_have_count(1)
    expect(page.locator("#nodes")).to_be_hidden()
    expect(page.locator("#of-node, th.node, .node-head")).to_have_count(0)
    page.goto("/launch/")
    expect(page.locator("select[name=node], input[name=node]")).to_have_count(0)
    page.goto("/reports/")
    expect(page.locator("#group_by option[value=node]")).to_have_count(0)


def test_the_worst_node_comes_first_and_its_cards_are_shown(site, open_as, shot):
    ada = person("ada", "user")
    first = rows.node()
    rows.gpu()
    calm, full = node("calm", labels={"rack": "a"}), node("full", labels={"rack": "b"})
    node("gone", seen_at=rows.ago(60), drained_at=rows.ago(90))
    held(calm, ada, 4)
    held(full, ada, 70, 2)
    page = open_as("ada", role="user")
    names = page.locator("#node-list button")
    expect(names).to_have_text(["gone", "full", "calm", first.name])
    expect(page.locator("#node-list li").first.locator(".tag")).to_contain_text("away for")
    expect(page.locator("#nodes-sum")).to_contain_text("4 nodes, 7 GPUs, 144 GiB of")
    expect(page.locator(".node-head h3")).to_have_text(["gone", "full", "calm", first.name])
    expect(page.locator("article.card")).to_have_count(7)
    for theme in ("light", "dark"):
        for size in ("wide", "phone"):
            seen = open_as("ada", role="user", size=size, theme=theme)
            expect(seen.locator("#node-list button")).to_have_count(4)
            shot(seen, f"nodes-{size}-{theme}")

    page.get_by_label("Find nodes").fill("rack=b")
    expect(names).to_have_text(["full"])
    expect(page.locator("article.card")).to_have_count(2)
    page.get_by_label("Find nodes").fill("")
    page.get_by_role("button", name="calm").click()
    expect(page.locator(".node-head h3")).to_have_text(["calm"])
    page.get_by_label("Group by").select_option("rack")
    expect(names).to_have_text(["gone", first.name, "calm", "full"])
    expect(page.locator("th.node")).to_have_count(1)
    page.locator("#of-node").select_option("full")
    expect(page.locator("#rows tr[data-id]")).to_have_count(2)


def test_a_map_of_2400_cards_makes_few_elements(site, open_as, shot):
    ada = person("ada", "user")
    rows.node()
    for number in range(NODES):
        made = node(f"gpu{number:03}", CARDS)
        if number % 3:
            held(made, ada, 10 + number % 60, CARDS)
    page = open_as("ada", role="user")
    expect(page.locator("#nodes-sum")).to_contain_text(f"{NODES + 1} nodes, {NODES * CARDS} GPUs")
    assert page.locator("article.card").count() <= 16
    assert page.locator("#nodes *").count() < 100
    shot(page, "nodes-300")


def test_what_changes_on_one_gpu_leaves_what_is_held_on_the_other(site, open_as):
    """Only what changed is sent, also of what a container has of its GPUs."""
    first, second = rows.gpu(0), rows.gpu(1)
    made = rows.container("both", person("ada", "user"), first, quota=4, used=1)
    Claim.objects.create(container=made, gpu=second, quota=4 * GIB, used=2 * GIB, granted=2 * GIB, peak=2 * GIB)
    page = open_as("ada", role="user")
    figures = page.locator('#rows [data-field="figures"]')
    expect(figures).to_have_text("3 GiB / 8 GiB / 3 GiB")
    expect(page.locator("article.card .legend a")).to_have_count(2)
    Claim.objects.filter(container=made, gpu=first).update(used=3 * GIB, granted=3 * GIB, peak=3 * GIB)
    expect(figures).to_have_text("5 GiB / 8 GiB / 5 GiB")
    Claim.objects.filter(container=made, gpu=second).delete()
    expect(figures).to_have_text("3 GiB / 4 GiB / 3 GiB")
    expect(page.locator("article.card .legend a")).to_have_count(1)

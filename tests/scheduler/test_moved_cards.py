"""A card that was taken out of one host and put into another is the other's once its own node has no more use for it.

Until then nobody has it who did not have it before, whatever a host says of itself.
"""

import shutil
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from scheduler.gpus import Card
from scheduler.store import Store
from scheduler.store.cards import CardTaken
from tests.support.appliance import until
from tests.support.host import query
from tests.support.joined import Site, as_node, launched
from tests.support.postgres import BIN
from web.models import Claim, Container, Gpu, Node
from web.services import nodes

A = Card("GPU-a", 0, "Simulated card", 1 << 30, 1 << 30, 0, simulated=True)
B = replace(A, uuid="GPU-b", index=1)


async def starts(name: str, *cards: Card) -> None:
    """A scheduler of that name, with these cards, which then goes on living without another word."""
    store = Store(name, f"home of {name}")
    try:
        await store.open({card.uuid: card for card in cards}, {})
        store.node(seen_at=timezone.now())
        await store.flush()
    finally:
        await store.database.close()


async def refused(name: str, *cards: Card) -> str:
    with pytest.raises(CardTaken) as caught:
        await starts(name, *cards)
    return str(caught.value)


async def whose() -> dict[str, str]:
    return await query(lambda: dict(Gpu.objects.filter(present=True).values_list("uuid", "node__name")))


async def falls_silent(name: str) -> None:
    long_ago = timezone.now() - timedelta(minutes=1)
    await query(Node.objects.filter(name=name).update, seen_at=long_ago, started_at=long_ago)


async def test_card_is_the_other_nodes_once_its_own_has_started_without_it(transactional_db: None) -> None:
    await starts("old", A, B)
    said = await refused("new", A)
    assert 'GPU-a is in this host, and a card of the node "old"' in said
    assert "`gpushare nodes old --remove`" in said
    assert await whose() == {"GPU-a": "old", "GPU-b": "old"}
    await starts("old", B)
    await starts("new", A)
    assert await whose() == {"GPU-a": "new", "GPU-b": "old"}


async def test_two_that_have_swapped_their_cards_both_start_in_the_end(transactional_db: None) -> None:
    """Each says at its first try what it has not any more."""
    await starts("old", A)
    await starts("new", B)
    await refused("old", B)
    await starts("new", A)
    await starts("old", B)
    assert await whose() == {"GPU-a": "new", "GPU-b": "old"}


async def test_card_that_somebody_has_a_quota_on_stays_where_that_is(transactional_db: None) -> None:
    await starts("old", A, B)
    await starts("old", B)
    fields = {"name": "a", "owner": await query(User.objects.create, username="eve"), "image": "local"}
    node, gpu = await query(Node.objects.get, name="old"), await query(Gpu.objects.get, uuid="GPU-a")
    container = await query(Container.objects.create, node=node, **fields)
    await query(Claim.objects.create, container=container, gpu=gpu, quota=5)
    assert "end the containers there" in await refused("new", A)
    await query(Container.objects.update, finished_at=timezone.now())
    await starts("new", A)
    assert await whose() == {"GPU-a": "new", "GPU-b": "old"}


async def test_host_that_was_given_another_name_has_its_cards(transactional_db: None) -> None:
    await starts("old", A)
    await falls_silent("old")
    await starts("renamed", A)
    assert await whose() == {"GPU-a": "renamed"}


async def test_card_of_a_node_that_was_removed_is_free(transactional_db: None) -> None:
    await starts("old", A)
    await falls_silent("old")
    await query(nodes.expel, "root", "old")
    await starts("new", A)
    assert await whose() == {"GPU-a": "new"}


TAKE = "SELECT gpushare_take_card(%(card)s)"


@pytest.mark.production
@pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL")
def test_under_its_role_a_node_has_what_another_gave_up_and_nothing_else(site: Site, gpu2: dict[str, str]) -> None:
    """Simulated cards are a file: it is moved from the home of one host to that of another, with both switched off."""
    site.joined("gpu4")
    site.start("gpu4")
    (uuid,) = card_of(site, "gpu4")
    launched(site, "held", node="gpu4")
    with as_node(gpu2) as thief:
        assert taken(thief, uuid) is False  # gpu4 has it
        site.stop("gpu4")
        site.sql("UPDATE web_node SET seen_at = now() - interval '1 hour' WHERE name = 'gpu4'")
        assert taken(thief, uuid) is False  # it is away, and nobody knows for how long
        site.sql("UPDATE web_gpu SET present = false WHERE uuid = %s", uuid)
        assert taken(thief, uuid) is False  # it has started without it, and somebody there has a quota on it
    site.joined("gpu5")
    home = site.folder / "gpu5" / "home"
    shutil.copytree(site.folder / "gpu4" / "home" / "card", home / "card")
    assert f'{uuid} is in this host, and a card of the node "gpu4"' in site.refused("gpu5")
    site.main.manage("node", "remove", "gpu4", "--force")
    site.start("gpu5")
    until(lambda: card_of(site, "gpu5") == [uuid])
    again = launched(site, "after", node="gpu5")
    assert site.main.state(again) == "running"
    assert "permission denied" not in site.log("gpu5")


def card_of(site: Site, name: str) -> list[str]:
    found = site.sql(
        "SELECT g.uuid FROM web_gpu g JOIN web_node n ON n.id = node_id WHERE present AND n.name = %s", name
    )
    return [uuid for (uuid,) in found]


def taken(database: Any, uuid: str) -> bool:
    ((done,),) = database.execute(TAKE, {"card": uuid}).fetchall()
    database.commit()
    return bool(done)

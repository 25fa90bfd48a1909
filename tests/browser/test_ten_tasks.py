"""Ten things that people come for take no more clicks than they may, among seventy containers of eight people."""

import pytest

from tests.browser import lab
from tests.browser.tasks import TASKS, Named, stop_all_of_one_person
from tests.support.answers import answering, obey
from web.models import Command

ROLES = {"boss": "admin"}


@pytest.fixture
def named(site) -> Named:
    scene = lab.a_lab(site.home / "logs")
    return Named(
        waiter="hanna", waits="hanna-sweep-3", away="greta", paused=3, failed="ann-finetune", word="OutOfMemoryError",
        stopped="bob", count=len(scene.of("bob")), node=scene.cards[0].node.name, card=0,
    )  # fmt: skip


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_it_takes_no_more_clicks_than_it_may(named, open_as, task):
    def opens(name: str):
        page = open_as(name, role=ROLES.get(name, "user"))
        page.context.grant_permissions(["clipboard-write"])
        page.locator('#connection[data-state="live"]').wait_for()
        return page

    with answering(obey):
        assert task(opens, named) <= TASKS[task]
    if task is stop_all_of_one_person:
        ended = Command.objects.filter(kind=Command.Kind.KILL).select_related("container__owner")
        assert [each.container.owner.get_username() for each in ended] == [named.stopped] * named.count

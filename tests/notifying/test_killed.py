"""kill -9 of whoever sends, at any point, and two of them at once: nothing is lost, and each message has one id."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.notifying.conftest import turn
from tests.support import sender
from web.models import Delivery, Episode

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(("point", "heard"), [("looked", 1), ("made", 1), ("claimed", 1), ("sent", 2)])
def test_whoever_comes_next_sends_what_a_killed_one_has_not_written_down(hook, receiver, engine, point, heard):
    engine("away")
    now = timezone.now()
    assert sender.start(point, now).wait(120) == -9
    turn(now + timedelta(seconds=1))
    if point in ("claimed", "sent"):  # a claim is waited out: the one who has it may be at it
        assert len(hook.heard) == heard - 1
        turn(now + timedelta(seconds=61))
    assert len(hook.heard) == heard
    assert {each.id for each in hook.heard} == {str(Delivery.objects.get(outcome="sent").pk)}
    assert len({each.body for each in hook.heard}) == 1
    turn(now + timedelta(hours=1))
    assert len(hook.heard) == heard


def test_two_at_once_send_each_message_once(hook, receiver, waiter):
    for number in range(25):
        waiter(f"train-{number}")
    now = timezone.now()
    both = [sender.start("never", now) for _ in range(2)]
    assert [each.wait(240) for each in both] == [0, 0]
    turn(now + timedelta(seconds=1))  # what one had claimed while the other looked is done by now
    assert Episode.objects.count() == Delivery.objects.filter(outcome="sent").count() == 25
    assert len(hook.heard) == len({each.id for each in hook.heard}) == 25

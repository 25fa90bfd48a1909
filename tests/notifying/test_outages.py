"""A receiver that is down, slow, wrong or flapping: within a day nothing is lost, and nothing is sent twice."""

import random
from collections import Counter
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from tests.notifying.conftest import send_all, turn
from tests.support import hooks
from web.models import Delivery, Episode, Receiver, Rule
from web.notifying import episodes, outbox, sending

pytestmark = pytest.mark.django_db

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
OUTAGE = timedelta(hours=23, minutes=45)


def everything_once(hook):
    """Each message was taken once; what was tried more often had the same id each time."""
    assert set(Counter(heard.id for heard in hook.taken).values()) <= {1}
    assert {heard.id for heard in hook.taken} == {str(pk) for pk in Delivery.objects.values_list("pk", flat=True)}
    assert not Delivery.objects.exclude(outcome="sent").exists()


def test_a_receiver_that_is_down_for_a_day_hears_all_of_it_in_order(hook, receiver, engine):
    start = timezone.now()
    hook.down()
    engine("away")
    for now in hooks.moments(start, 5 * MINUTE, MINUTE):
        turn(now)
    engine("")
    for now in hooks.moments(start + 6 * MINUTE, OUTAGE - 6 * MINUTE, 10 * MINUTE):
        turn(now)
    row = Delivery.objects.get(phase="firing")
    assert row.tries > 50
    assert row.error.startswith("It could not be reached")
    assert hook.heard == []
    hook.up()
    for now in hooks.moments(start + OUTAGE, 11 * MINUTE, MINUTE):
        turn(now)
    assert hook.statuses == [("firing", "engine_away"), ("resolved", "engine_away")]
    everything_once(hook)
    assert Receiver.objects.get().failures == 0


def test_after_a_day_it_is_given_up_and_says_so(hook, receiver, engine):
    start = timezone.now()
    hook.down()
    engine("away")
    for now in hooks.moments(start, timedelta(hours=24, minutes=20), 20 * MINUTE):
        turn(now)
    outbox.tidy(start + timedelta(hours=24, minutes=20))
    row = Delivery.objects.get()
    assert (row.outcome, row.error[:25]) == ("given_up", "It could not be reached: ")
    hook.up()
    turn(start + timedelta(hours=25))
    assert hook.heard == []


def test_one_that_answers_wrongly_hears_it_again_with_the_same_id(hook, receiver, engine):
    start = timezone.now()
    hook.answer, hook.text = 500, b"out of order\r\n\x1b[2J"
    engine("away")
    for now in hooks.moments(start, HOUR, MINUTE):
        turn(now)
    assert 8 < len(hook.heard) < 15  # ten seconds, twenty, … and at last every ten minutes
    assert Delivery.objects.get().error == "It answered 500. out of order [2J"
    hook.answer, hook.text = 200, b""
    for now in hooks.moments(start + HOUR, 11 * MINUTE, MINUTE):
        turn(now)
    assert len({heard.id for heard in hook.heard}) == 1
    assert hook.statuses == [("firing", "engine_away")]


def test_one_message_that_is_refused_does_not_hold_up_the_others(hook, receiver, engine, waiter):
    start = timezone.now()
    hook.answer = 400
    engine("away")
    turn(start)
    hook.answer = 200
    waiter("train")
    turn(start + timedelta(seconds=1))
    assert hook.statuses == [("firing", "waiting")]


def test_one_that_flaps_all_day_hears_each_of_many_once(hook, receiver, engine):
    chance = random.Random(7)
    start = timezone.now()
    for number, now in enumerate(hooks.moments(start, 23 * HOUR, 10 * MINUTE)):
        hook.answer = 200
        match chance.randrange(4):
            case 0:
                hook.down()
            case 1:
                hook.up()
                hook.answer = chance.choice([301, 404, 429, 500, 503])
            case _:
                hook.up()
        engine("away" if number % 6 < 3 else "")
        turn(now)
    engine("")
    hook.up()
    hook.answer = 200
    for now in hooks.moments(start + 23 * HOUR, HOUR, 5 * MINUTE):
        turn(now)
    assert len(hook.statuses) > 30
    assert hook.statuses == [("firing", "engine_away"), ("resolved", "engine_away")] * (len(hook.statuses) // 2)
    everything_once(hook)


def test_while_the_database_does_not_answer_nothing_begins_and_nothing_is_over(hook, receiver, engine, monkeypatch):
    start = timezone.now()
    engine("away")
    turn(start)
    with monkeypatch.context() as patch:
        patch.setattr("web.services.attention.cards.items", fails)
        with pytest.raises(OperationalError):
            episodes.look(start + HOUR)
    turn(start + HOUR)
    assert [(each.kind, each.gone_at) for each in Episode.objects.all()] == [("engine_away", None)]
    assert hook.statuses == [("firing", "engine_away")]


def fails(*_: object) -> None:
    raise OperationalError("database is locked")


def test_a_slow_one_is_waited_for_so_long_and_no_longer(receiver, engine, monkeypatch):
    monkeypatch.setattr(sending, "DEADLINE", 0.5)
    engine("away")
    with hooks.dripping(0.05) as url:
        Receiver.objects.update(url=url)
        turn(timezone.now())  # which else would last as long as the test: the answer has no end
    assert "It did not answer within" in Delivery.objects.get().error
    assert Receiver.objects.get().failures == 1


def test_an_endless_answer_is_not_read(receiver, engine):
    """1 GiB would take seconds, and the memory."""
    engine("away")
    with hooks.listening(answer=500, text=b"x" * (64 << 20)) as hook:
        Receiver.objects.update(url=hook.url)
        turn(timezone.now())
        assert Delivery.objects.get().error == "It answered 500. " + "x" * 200


def test_while_nobody_can_reach_it_one_message_tries_for_all(hook, receiver, waiter):
    hook.down()
    for number in range(30):
        waiter(f"train-{number}")
    now = timezone.now()
    for second in range(0, 60, 4):
        turn(now + timedelta(seconds=second))
    assert Delivery.objects.count() == 30
    assert sum(Delivery.objects.values_list("tries", flat=True)) <= 3
    hook.up()
    turn(now + timedelta(minutes=15))
    assert len(hook.statuses) == 30
    everything_once(hook)


def test_there_are_never_more_than_so_many_for_one_receiver(hook, receiver, waiter, monkeypatch):
    monkeypatch.setattr(outbox, "WAITING_MOST", 5)
    hook.down()
    for number in range(8):
        waiter(f"train-{number}")
    now = timezone.now()
    turn(now)
    assert Delivery.objects.count() == 5
    hook.up()
    for minutes in range(1, 20):
        turn(now + minutes * MINUTE)
    assert len(hook.statuses) == 8  # what still is so was sent once there was room
    everything_once(hook)


def test_a_receiver_that_is_down_does_not_hold_up_another(hook, receiver, engine):
    with hooks.listening() as other:
        Rule.objects.create(
            receiver=Receiver.objects.create(name="other", kind=Receiver.Kind.WEBHOOK, url=other.url, secret="s" * 16)
        )
        hook.down()
        engine("away")
        turn(timezone.now())
        assert other.statuses == [("firing", "engine_away")]


def test_what_was_sent_long_ago_is_forgotten_and_what_goes_on_is_not_sent_again(hook, receiver, engine):
    now = timezone.now()
    engine("away")
    turn(now)
    outbox.tidy(now + timedelta(days=8))
    turn(now + timedelta(days=8))
    assert hook.statuses == [("firing", "engine_away")]
    engine("")
    for minutes in range(3):
        turn(now + timedelta(days=8, minutes=minutes))
    assert len(hook.statuses) == 2
    outbox.tidy(now + timedelta(days=16))
    assert not Delivery.objects.exists()
    send_all(now + timedelta(days=16))
    assert len(hook.statuses) == 2

"""What there may be so many of, asked for by many at once: it stays so many."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.db import connections

from tests.notifying.test_rest import HOOK
from tests.support.people import make_user
from web.errors import Problem
from web.models import AuditEntry, Delivery, Rule
from web.notifying import loop, outbox
from web.people.roles import Role
from web.services import notifying

pytestmark = pytest.mark.django_db(transaction=True)


def asked_by_six_at_once(deed: Callable[[], object]) -> list[str]:
    """What became of each, "done" or the refusal's code."""
    together, answers = threading.Barrier(6), []

    def ask() -> None:
        together.wait()
        try:
            deed()
            answers.append("done")
        except Problem as problem:
            answers.append(problem.code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_of_rules_there_are_never_more_than_the_most(monkeypatch):
    monkeypatch.setattr(notifying, "MOST", 2)
    boss = make_user("boss", Role.ADMIN)
    notifying.add_receiver(boss, HOOK)
    notifying.add_rule(boss, {"receiver": "lab"})
    nearly, plain = threading.Barrier(6), notifying._plain

    def all_come_so_far(value: object) -> object:
        """Just before it is written."""
        nearly.wait(60)
        return plain(value)

    monkeypatch.setattr(notifying, "_plain", all_come_so_far)
    answers = asked_by_six_at_once(lambda: notifying.add_rule(boss, {"receiver": "lab"}))
    assert answers.count("done") == 1
    assert Rule.objects.count() == 2
    assert AuditEntry.objects.filter(action="rule-added").count() == 2  # what was refused is recorded nowhere


def test_no_more_than_three_messages_wait_that_try_a_receiver():
    boss = make_user("boss", Role.ADMIN)
    receiver = notifying.add_receiver(boss, HOOK)
    answers = asked_by_six_at_once(lambda: notifying.test_receiver(boss, receiver.pk))
    assert sorted(set(answers)) == ["conflict", "done"]
    assert answers.count("done") == Delivery.objects.count() == 3


def test_a_receiver_whose_thread_cannot_be_started_has_one_at_the_next_turn(monkeypatch):
    started: list[int | None] = []
    hosts = SimpleNamespace(fails=True)

    class Thread:
        def __init__(self, args: list[int | None], **_: object) -> None:
            self._args = args

        def start(self) -> None:
            if hosts.fails:
                raise RuntimeError("can't start new thread")
            started.extend(self._args)

    monkeypatch.setattr(loop.threading, "Thread", Thread)
    monkeypatch.setattr(outbox, "destinations", lambda now: {7})
    notifier = loop.Notifier()
    notifier._turn()
    assert started == []
    hosts.fails = False
    notifier._turn()
    notifier._turn()
    assert started == [7]

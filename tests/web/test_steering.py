"""Pause, resume, kill, change, remove, reorder, policy: what is asked of the scheduler, and what is refused before."""

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from tests.support.machine import GIB, commands_answered, make_container
from tests.support.people import client_for, make_user
from web import audit
from web.errors import Problem
from web.models import AllocationEvent, AuditEntry, Command, Node
from web.people.roles import Role
from web.services import issuing, launching, steering

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(ada, gpu):
    return make_container(ada, "runs", gpu, quota=2 * GIB)


def code_of(deed) -> tuple[int, str]:
    with pytest.raises(Problem) as refused:
        deed()
    return refused.value.status, refused.value.code


@pytest.mark.parametrize(
    ("deed", "kind", "arguments"),
    [
        (lambda user, it: steering.pause(user, it, "lunch"), "pause", {}),
        (lambda user, it: steering.resume(user, it), "resume", {}),
        (lambda user, it: steering.kill(user, it), "kill", {"grace": 0.0}),
        (lambda user, it: steering.kill(user, it, grace=3), "kill", {"grace": 3.0}),
        (lambda user, it: steering.change(user, it, gpu_memory="3g"), "change", {"gpu_memory": 3 * GIB}),
        (lambda user, it: steering.change(user, it, priority=-5), "change", {"priority": -5}),
        (lambda user, it: steering.change(user, it, compute_weight=300), "change", {"compute_weight": 300}),
        (lambda user, it: steering.change(user, it, compute_limit=None), "change", {"compute_limit": None}),
    ],
)
def test_a_wish_is_a_command_and_an_audit_entry(ada, running, deed, kind, arguments):
    command = deed(ada, running)
    assert (command.kind, command.container, command.issued_by) == (kind, running, ada)
    assert command.arguments == arguments
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.actor, entry.subject) == (kind, "ada", str(running.pk))
    assert entry.detail["before"] == {
        "state": "running", "priority": 0, "quota": {"GPU-0": 2 * GIB}, "compute_weight": 100, "compute_limit": None,
    }  # fmt: skip


def test_what_has_ended_is_not_steered(ada, running):
    running.finished_at = timezone.now()
    running.save(update_fields=["finished_at"])
    assert code_of(lambda: steering.pause(ada, running)) == (409, "container_ended")
    assert steering.remove(ada, running).kind == "remove"


def test_what_lives_is_not_removed(ada, running):
    assert code_of(lambda: steering.remove(ada, running)) == (409, "not_ended")


def test_what_was_removed_is_not_removed_again(ada, running):
    now = timezone.now()
    running.finished_at = running.removed_at = now
    running.save(update_fields=["finished_at", "removed_at"])
    assert code_of(lambda: steering.remove(ada, running)) == (404, "not_found")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (400, "invalid")),
        ({"gpu_memory": 0}, (400, "invalid")),
        ({"gpu_memory": "6g"}, (400, "over_capacity")),
        ({"priority": 101}, (400, "invalid")),
        ({"priority": "3"}, (400, "invalid")),
        ({"name": "other"}, (400, "unknown_field")),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(ada, running, fields, expected):
    assert code_of(lambda: steering.change(ada, running, **fields)) == expected
    assert not Command.objects.exists()


def test_an_operator_reorders_and_an_admin_sets_the_policy(ada, running, gpu):
    operator, admin = make_user("olga", Role.OPERATOR), make_user("root", Role.ADMIN)
    assert steering.reorder(operator, [running.pk]).arguments == {"containers": [str(running.pk)]}
    assert steering.set_policy(admin, "fifo").arguments == {"policy": "fifo"}
    assert code_of(lambda: steering.reorder(ada, [running.pk])) == (403, "forbidden")
    assert code_of(lambda: steering.set_policy(operator, "fifo")) == (403, "forbidden")
    assert code_of(lambda: steering.reorder(operator, [running.pk] * 2)) == (400, "invalid")
    assert code_of(lambda: steering.reorder(operator, ["00000000-0000-0000-0000-000000000000"])) == (
        400,
        "unknown_container",
    )


def test_nothing_is_asked_of_a_silent_scheduler(ada, running, node):
    node.seen_at = timezone.now() - timedelta(seconds=6)
    node.save(update_fields=["seen_at"])
    assert code_of(lambda: steering.pause(ada, running)) == (503, "scheduler_away")
    assert not Command.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_answer_says_what_really_happened(ada, client, running):
    with commands_answered(message="It was paused already."):
        answer = client.post(f"/api/v1/containers/{running.pk}/pause/", {"note": "lunch"})
    assert answer.status_code == 200
    assert (answer.json()["id"], answer.json()["message"]) == (str(running.pk), "It was paused already.")
    with commands_answered(outcome=Command.Outcome.REFUSED, code="engine_away", status=503, message="No Docker."):
        answer = client.post(f"/api/v1/containers/{running.pk}/kill/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_away")
    with commands_answered(message="Done."):
        assert client.patch(f"/api/v1/containers/{running.pk}/", {"priority": 1}).status_code == 200
        assert client_for(make_user("olga", Role.OPERATOR)).put("/api/v1/queue/", {"containers": []}).status_code == 200


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time and locks no rows")
@pytest.mark.parametrize(
    "deed",
    [lambda user, it: steering.pause(user, it), lambda user, it: steering.launch(user, {"image": "local"})],
    ids=["steering", "launching"],
)
def test_rows_that_refer_to_what_is_locked_are_written_meanwhile(ada, running, deed, monkeypatch):
    """Else the scheduler, with the audit chain in its hands, would wait for whoever asks for that chain next."""

    def write() -> None:
        with transaction.atomic():
            audit.append([AllocationEvent(at=timezone.now(), kind="paused", container=running)])
            Command.objects.create(kind="policy", issued_by=ada)
        connections.close_all()

    def issue(*arguments: Any, **words: Any) -> Command:
        writer = threading.Thread(target=write)
        writer.start()
        writer.join(60)
        assert not writer.is_alive()
        return issuing.issue(*arguments, **words)

    monkeypatch.setattr(steering, "issue", issue)
    monkeypatch.setattr(launching, "issuing", SimpleNamespace(issue=issue))
    assert deed(ada, running).done_at is None


@pytest.mark.django_db(transaction=True)
def test_a_command_sends_the_scheduler_a_hint(ada, running, settings):
    from asgiref.sync import async_to_sync
    from channels.layers import get_channel_layer

    # One that keeps messages from one event loop to the next; between processes they need somebody who listens.
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    command = steering.pause(ada, running)
    heard = issuing.hint_channel(command.node_id or Node.objects.get().pk)
    assert async_to_sync(get_channel_layer().receive)(heard) == {"type": "wake"}


def test_waiting_ends_with_the_outcome_or_the_timeout(ada, running, monkeypatch):
    command = steering.pause(ada, running)
    monkeypatch.setattr(issuing, "ANSWER_WITHIN", 0.02)
    assert steering.wait_for(command).done_at is None
    Command.objects.update(done_at=timezone.now(), outcome="done", message="Paused.")
    assert steering.wait_for(command).message == "Paused."

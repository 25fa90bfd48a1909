"""What the buttons post to. The answer is a toast that says what the scheduler did."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse

from web.errors import Problem, invalid, not_found
from web.models import Command, Container, large
from web.pages.frame import action_view, answer, person, post_view, toast
from web.pages.queue import queue_as_it_is
from web.services import steering
from web.spec import quotas

Action = Callable[[User, Container, dict[str, Any]], Command]
ACTIONS: dict[str, Action] = {
    "pause": lambda user, container, given: steering.pause(user, container, note=given["note"]),
    "free": lambda user, container, given: steering.pause(user, container, note=given["note"], free_memory=True),
    "resume": lambda user, container, given: steering.resume(user, container, note=given["note"]),
    "kill": lambda user, container, given: steering.kill(user, container, note=given["note"]),
    "stop": lambda user, container, given: steering.kill(user, container, GRACE, note=given["note"]),
    "first": lambda user, container, given: steering.reorder(user, [container.pk]),
    "remove": lambda user, container, given: steering.remove(user, container),
    "move": lambda user, container, given: steering.move(
        user, container, given.get("gpu", ""), given.get("leaves", ""), given["note"]
    ),
    "change": lambda user, container, given: steering.change(user, container, **_changes(given)),
}
NO_LIMIT = ("compute_limit", "none")
GRACE = 10.0  # seconds in which a container that is stopped may end by itself
# What can be done to many at once, and what is shown of it then.
TOGETHER = {
    "pause": "paused",
    "free": "paused, their memory freed",
    "resume": "resumed",
    "kill": "killed",
    "stop": "stopped",
}


@action_view
def act(request: HttpRequest, pk: Any, action: str) -> HttpResponse:
    """One action on one container."""
    if action not in ACTIONS:
        raise Http404
    container = Container.objects.select_related("owner").filter(pk=pk).first()
    if container is None:
        raise not_found("There is no such container.")
    undo = _undo(action, container, request)
    return answer(request, ACTIONS[action](person(request), container, _given(request)), undo, container.name)


@post_view
def act_on_many(request: HttpRequest) -> HttpResponse:
    """One action on those selected: all are asked first, then each answer is awaited."""
    action = request.POST.get("action", "")
    if action not in TOGETHER:
        raise Http404
    commands: list[Command] = []
    refused: list[str] = []
    chosen = [pk for pk in map(_uuid, request.POST.getlist("id")) if pk]
    for container in Container.objects.select_related("owner").defer(*large()).filter(pk__in=chosen):
        try:
            commands.append(ACTIONS[action](person(request), container, _given(request)))
        except Problem as problem:
            refused.append(f"{container.name}: {problem.message}")
        except DatabaseError:  # those before it were asked: the answer is to tell of them
            refused.append("The database is busy, full or away.")
    done = pending = 0
    for command in commands:
        try:
            if steering.settled(steering.wait_for(command)):
                done += 1
            else:
                pending += 1
        except Problem as problem:
            refused.append(problem.message)
    words = [f"{done} container{'s' * (done != 1)} {TOGETHER[action]}."]
    if pending:
        words.append(f"{pending} not answered yet.")
    if refused:
        words.append(f"{len(refused)} refused: {refused[0]}")
    return toast(request, "bad" if refused else "warn" if pending else "good", " ".join(words))


def _given(request: HttpRequest) -> dict[str, Any]:
    return {"note": request.POST.get("note", "")} | {
        name: request.POST[name] for name in request.POST if name != "note"
    }


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a change as the form has them: only those that were given."""
    changes: dict[str, Any] = {}
    if text := given.get("gpu_memory", "").strip():
        try:
            changes["gpu_memory"] = quotas.read(text)
        except ValueError as error:
            raise invalid(str(error), "gpu_memory") from None
    for name in ("priority", "compute_weight", "compute_limit"):
        if text := given.get(name, "").strip():
            try:
                changes[name] = None if (name, text) == NO_LIMIT else int(text)
            except ValueError:
                raise invalid("This has to be a whole number.", name) from None
    return changes


def _undo(action: str, container: Container, request: HttpRequest) -> dict[str, Any] | None:
    """The button that takes an action back, if there is one; for a change it holds what was before."""
    match action:
        case "pause":
            return {"act": "resume", "id": container.pk}
        case "resume":
            return {"act": "pause", "id": container.pk}
        case "first":
            return queue_as_it_is()
        case "change":
            claim = container.claims.first()
            before = {
                "gpu_memory": claim.quota if claim else container.gpu_memory,
                "priority": container.priority,
                "compute_weight": container.compute_weight,
                "compute_limit": container.compute_limit or NO_LIMIT[1],
            }
            return {"act": "change", "id": container.pk,
                    "fields": {name: value for name, value in before.items() if request.POST.get(name)}}  # fmt: skip
    return None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None

"""The pages. Thin: what they show is read by snapshot, listing and their like; what they do is done by services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from web import listing, services
from web.errors import Problem
from web.models import Command, Container
from web.roles import role_of
from web.text import catalogue

PAGES = (("dashboard", _("Overview")),)
UNDONE_BY = {"pause": "resume", "resume": "pause"}
ACTIONS: dict[str, Callable[[User, Container, str], Command]] = {
    "pause": lambda user, container, note: services.pause(user, container, note=note),
    "resume": lambda user, container, note: services.resume(user, container, note=note),
    "kill": lambda user, container, note: services.kill(user, container, note=note),
    "remove": lambda user, container, note: services.remove(user, container),
}


def show(request: HttpRequest, template: str, context: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
    """A whole page, with what its frame needs."""
    user = person(request)
    frame = {
        "me": {"name": user.get_username(), "role": role_of(user).group},
        "navigation": [
            {"label": label, "url": reverse(name), "current": request.path == reverse(name)} for name, label in PAGES
        ],
        "text": catalogue(),
    }
    return render(request, template, frame | (context or {}), status=status)


def person(request: HttpRequest) -> User:
    """Who asks, on a page that asks for signing in."""
    assert isinstance(request.user, User)
    return request.user


def toast(request: HttpRequest, kind: str, message: str, undo: dict[str, Any] | None = None) -> HttpResponse:
    return render(request, "parts/toast.html", {"kind": kind, "message": message, "undo": undo})


@login_required
@require_GET
def dashboard(request: HttpRequest) -> HttpResponse:
    return show(request, "dashboard.html", {"page": listing.page(person(request), request.GET)})


@login_required
@require_GET
def container_rows(request: HttpRequest) -> HttpResponse:
    return render(request, "parts/rows.html", {"page": listing.page(person(request), request.GET)})


@login_required
@require_POST
def act(request: HttpRequest, pk: UUID, action: str) -> HttpResponse:
    """One action on one container, answered with what the scheduler said."""
    if action not in ACTIONS:
        raise Http404
    try:
        container = Container.objects.listed().get(pk=pk)
        command = ACTIONS[action](person(request), container, request.POST.get("note", ""))
    except Container.DoesNotExist:
        return toast(request, "bad", _("There is no such container any more."))
    except Problem as problem:
        return toast(request, "bad", problem.message)
    return answer(request, services.wait_for(command), undo=UNDONE_BY.get(action))


@login_required
@require_POST
def act_on_many(request: HttpRequest) -> HttpResponse:
    """One action on those selected: all are asked first, then each answer is awaited."""
    action = request.POST.get("action", "")
    if action not in ACTIONS:
        raise Http404
    commands, refused = [], []
    for container in Container.objects.listed().filter(pk__in=request.POST.getlist("id")):
        try:
            commands.append(ACTIONS[action](person(request), container, request.POST.get("note", "")))
        except Problem as problem:
            refused.append(problem.message)
    answers = [services.wait_for(command) for command in commands]
    refused += [command.message for command in answers if command.outcome == Command.Outcome.REFUSED]
    done = sum(command.outcome == Command.Outcome.DONE for command in answers)
    pending = len(answers) - done - sum(command.outcome == Command.Outcome.REFUSED for command in answers)
    words = [_("%(done)s done.") % {"done": done}]
    if pending:
        words.append(_("%(pending)s not answered yet.") % {"pending": pending})
    if refused:
        words.append(_("%(count)s refused: %(first)s") % {"count": len(refused), "first": refused[0]})
    return toast(request, "bad" if refused else "warn" if pending else "good", " ".join(words))


def answer(request: HttpRequest, command: Command, undo: str | None = None) -> HttpResponse:
    """What became of a command, in one sentence."""
    if command.done_at is None:
        return toast(request, "warn", _("The scheduler has not answered yet. It will do this as soon as it can."))
    if command.outcome == Command.Outcome.REFUSED:
        return toast(request, "bad", command.message)
    offer = {"act": undo, "id": command.container_id} if undo else None
    return toast(request, "good", command.message or _("Done."), offer)

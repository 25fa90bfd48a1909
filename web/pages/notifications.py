"""Notifications: who gets which, for admins; those about one's own containers, a part of Me."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from web.errors import invalid
from web.models import Happening, Receiver, Rule, Severity, Silence
from web.pages.frame import action_view, page_view, person, refresh, show
from web.pages.text import HAPPENINGS
from web.people.roles import Deed, rights_of
from web.services import notifying
from web.services.attention import Kind

SHOWN = 50  # deliveries

Done = tuple[str, Callable[[], Any]]  # what to say of it, and what does it


@page_view
def page(request: HttpRequest) -> HttpResponse:
    if not rights_of(person(request)).may(Deed.NOTIFY):
        return redirect(f"{reverse('me')}#notifications")
    receivers = list(Receiver.objects.all())
    context = {
        "receivers": [(each, each.deliveries.filter(done_at=None).count()) for each in receivers],
        "names": [each.name for each in receivers],
        "receiver_kinds": Receiver.Kind.choices,
        "rules": Rule.objects.select_related("receiver"),
        "silences": Silence.objects.filter(until__gt=timezone.now()),
        "kinds": [(kind.value, kind.value.replace("_", " ")) for kind in Kind],
        "severities": Severity.choices,
        "deliveries": notifying.deliveries()[:SHOWN],
        "new_receiver": Receiver(),
        "new_rule": Rule(),
    }
    return show(request, "notifications.html", context)


def wishes(user: User) -> dict[str, Any]:
    """What templates/parts/notifications.html shows."""
    return {
        "wish": notifying.wish_of(user),
        "happenings": [(word.value, HAPPENINGS[word]) for word in Happening],
        "mail_set_up": bool(settings.EMAIL_HOST),
        "address": user.email,
    }


@action_view
def mine(request: HttpRequest) -> HttpResponse:
    form = request.POST
    wish = {"browser": "browser" in form, "happenings": form.getlist("happenings")}
    wish |= {"goes_on_minutes": _number(form, "goes_on_minutes"), "mail": "mail" in form}
    notifying.set_wish(person(request), wish)
    return refresh(request, "Saved.")


@action_view
def act(request: HttpRequest, what: str, pk: int = 0, action: str = "add") -> HttpResponse:
    """`what`: receivers, rules or silences; `action`: add, change, remove or test."""
    user, form = person(request), request.POST
    deeds: dict[tuple[str, str], Done] = {
        ("receivers", "add"): ("The receiver is added. It needs a rule.",
                               lambda: notifying.add_receiver(user, _receiver(form))),
        ("receivers", "change"): ("Saved.", lambda: notifying.change_receiver(user, pk, _receiver(form))),
        ("receivers", "remove"): ("It is removed.", lambda: notifying.remove(user, Receiver, pk)),
        ("receivers", "test"): ("Test message queued. Its result appears below.",
                                lambda: notifying.test_receiver(user, pk)),
        ("rules", "add"): ("The rule is in force.", lambda: notifying.add_rule(user, _rule(form))),
        ("rules", "change"): ("Saved.", lambda: notifying.change_rule(user, pk, _rule(form))),
        ("rules", "remove"): ("It is removed.", lambda: notifying.remove(user, Rule, pk)),
        ("silences", "add"): ("Silenced.", lambda: notifying.add_silence(user, _silence(form))),
        ("silences", "remove"): ("The silence is over.", lambda: notifying.remove(user, Silence, pk)),
    }  # fmt: skip
    if (what, action) not in deeds or (action == "add") == bool(pk):
        raise Http404
    said, do = deeds[what, action]
    do()
    return refresh(request, said)


def _receiver(form: QueryDict) -> dict[str, Any]:
    asked: dict[str, Any] = {name: form.get(name, "").strip() for name in ("name", "kind", "url")}
    asked["addresses"] = form.get("addresses", "").replace(",", " ").split()
    asked["enabled"], asked["monthly"] = "enabled" in form, "monthly" in form
    return asked | ({"secret": secret} if (secret := form.get("secret", "")) else {})


def _rule(form: QueryDict) -> dict[str, Any]:
    return {
        "receiver": form.get("receiver", ""),
        "kinds": form.getlist("kinds"),
        "severity": form.get("severity", Severity.INFO),
        "minutes": _number(form, "minutes"),
        "repeat_minutes": _number(form, "repeat_minutes") if form.get("repeat_minutes", "").strip() else None,
        "resolved": "resolved" in form,
        "enabled": "enabled" in form,
    }


def _silence(form: QueryDict) -> dict[str, Any]:
    hours = _number(form, "hours")
    if not 0 < hours <= 24 * 366:
        raise invalid("A silence lasts more than 0 hours and a year at most.", "hours")
    until = timezone.now() + timedelta(hours=hours)
    return {"until": until.isoformat()} | {
        name: form.get(name, "").strip() for name in ("kind", "person", "container", "note")
    }


def _number(form: QueryDict, name: str) -> float:
    try:
        return float(form.get(name, "").strip() or 0)
    except ValueError:
        raise invalid(f"{form.get(name, '')[:40]!r} is not a number.", name) from None

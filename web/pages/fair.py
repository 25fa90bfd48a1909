"""The fairness page: who holds against what they are entitled to, and who holds without computing."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from web import audit
from web.errors import Problem
from web.history import fairness
from web.pages.frame import container_or_404, person, refusal, show, toast
from web.people.roles import require_steering, steered_by

RANGES = {"1": "Last 24 hours", "7": "Last 7 days", "30": "Last 30 days"}


@login_required
@require_GET
def page(request: HttpRequest) -> HttpResponse:
    user = person(request)
    days = request.GET.get("days", "7")
    days = days if days in RANGES else "7"
    now = timezone.now()
    people = fairness.people(now - timedelta(days=int(days)), now)
    steers = steered_by(user)
    idle = [
        {"claim": claim, "seconds": seconds, "may_act": steers(claim.container)}
        for claim, seconds in fairness.idle_holders(now)
    ]
    context = {
        "days": days,
        "ranges": RANGES.items(),
        "people": people,
        "groups": fairness.groups(people),
        "idle": idle,
    }
    return show(request, "fairness.html", context)


@login_required
@require_POST
def warn(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Tells the owner, on their next page, that what they hold lies idle. Kept in the audit log."""
    container = container_or_404(pk)
    user = person(request)
    try:
        require_steering(user, container, "warn about")
    except Problem as problem:
        return refusal(request, problem)
    owner = container.owner.get_username()
    audit.record(user.get_username(), "warn", container.pk, name=container.name, owner=owner)
    return toast(request, "good", f"{owner} sees a warning about {container.name} on the next page.")

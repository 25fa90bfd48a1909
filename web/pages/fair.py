"""The fairness page: who used how much of what others waited for, against their fair share; and who holds idle."""

from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from web.history import fairness
from web.pages.frame import action_view, container_or_404, page_view, person, show, toast
from web.people.roles import steered_by
from web.services import warning

RANGES = {"1": "Last 24 hours", "7": "Last 7 days", "30": "Last 30 days"}


@page_view
def page(request: HttpRequest) -> HttpResponse:
    days = request.GET.get("days", "7")
    days = days if days in RANGES else "7"
    now = timezone.now()
    start = now - timedelta(days=int(days))
    people = fairness.people(start, now)
    groups = fairness.groups(people)
    steers = steered_by(person(request))
    idle = [
        {"claim": claim, "seconds": (now - since).total_seconds(), "may_act": steers(claim.container)}
        for claim, since in fairness.idle_holders()
    ]
    context = {
        "days": days,
        "ranges": RANGES.items(),
        "people": people,
        "groups": groups,
        "above": [each for each in people if each.above],
        "most": _most(people),
        "most_of_groups": _most(groups),
        "curve": fairness.curve(start, now),
        "idle": idle,
        "idle_minutes": settings.GPUSHARE_IDLE_MINUTES,
    }
    return show(request, "fairness.html", context)


def _most(found: list[fairness.Figures]) -> float:
    """The end of the bars."""
    return max((max(each.had, each.due) for each in found), default=0.0)


@action_view
def warn(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Tells the owner, on their next page, that what they hold lies idle. Kept in the audit log."""
    container = container_or_404(pk)
    warning.warn(person(request), container)
    owner = container.owner.get_username()
    return toast(request, "good", f"{owner} sees a warning about {container.name} on the next page.")

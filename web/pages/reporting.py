"""Reports: a range, a grouping, a chart, a table, CSV and paper."""

from datetime import date, datetime, time, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils import timezone

from web.errors import Problem
from web.history import peaks, reports
from web.models import Node
from web.pages.frame import page_view, person, show
from web.spec import periods

GROUPINGS = {name: name.capitalize() for name in reports.GROUPINGS}


@page_view
def page(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """?from=&to= (dates, both included) or ?preset=, ?group_by=, ?format=csv; of everybody, unless ?mine=1."""
    today = timezone.localdate()
    first, last, error = today - timedelta(days=29), today, ""
    presets = _presets(today)
    chosen = request.GET.get("preset", "")
    if chosen in presets:
        first, last = presets[chosen][1:]
    try:
        first, last = _date(request.GET.get("from"), first), _date(request.GET.get("to"), last)
        start, end = periods.past(_midnight(first), _midnight(last) + timedelta(days=1))
    except ValueError as wrong:
        error = str(wrong)
    except Problem as problem:
        error = problem.message
    groupings = GROUPINGS if Node.several() else {name: label for name, label in GROUPINGS.items() if name != "node"}
    group_by = request.GET.get("group_by", "user")
    group_by = group_by if group_by in groupings else "user"
    context: dict[str, Any] = {
        "presets": [(name, label, (begin, end_) == (first, last)) for name, (label, begin, end_) in presets.items()],
        "first": first,
        "last": last,
        "group_by": group_by,
        "groupings": groupings.items(),
        "error": error,
        "mine": request.GET.get("mine") == "1",
    }
    if error:
        return show(request, "reports.html", context, status=400)
    owner = person(request).get_username() if context["mine"] else ""
    found = reports.report(start, end, group_by, owner)
    if request.GET.get("format") == "csv":
        response = StreamingHttpResponse(reports.csv_stream(found), content_type="text/csv; charset=utf-8")
        name = f"gpushare-{group_by}-{first}-{last}.csv"
        response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return response
    rows = [row | {"share": share} for row, share in found.shares()]
    most = max((row["vram_gib_hours"] for row in rows), default=0)
    for row in rows:
        row["bar"] = 100 * row["vram_gib_hours"] / most if most else 0
    priced = found.total.as_dict()["cost"] > 0
    context |= {"rows": rows, "total": found.total.as_dict(), "priced": priced}
    context["transfers"] = reports.transfers(start, end, owner)
    if group_by == "image":
        images = {row["group"] for row in rows}
        context["peaks"] = [each for each in peaks.peaks(person(request)) if each.image in images]
    return show(request, "reports.html", context)


def _presets(today: date) -> dict[str, tuple[str, date, date]]:
    """What people ask for most: a label, the first and the last day of each."""
    monday, begins = today - timedelta(days=today.weekday()), today.replace(day=1)
    last_month = begins - timedelta(days=1)
    return {
        "this-week": ("This week", monday, today),
        "last-week": ("Last week", monday - timedelta(days=7), monday - timedelta(days=1)),
        "this-month": ("This month", begins, today),
        "last-month": ("Last month", last_month.replace(day=1), last_month),
    }


def _date(text: str | None, otherwise: date) -> date:
    """The day that was typed, if any. Raises ValueError, whose text is for people."""
    return periods.point(text).date() if text else otherwise


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, timezone.get_current_timezone())

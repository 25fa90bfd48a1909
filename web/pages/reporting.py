"""Reports: a range, a grouping, a chart, a table, CSV and paper."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from web.history import peaks, reports
from web.pages.frame import person, show

GROUPINGS = {"user": "User", "group": "Group", "container": "Container", "image": "Image", "day": "Day"}


@login_required
@require_GET
def page(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """?from=&to= (dates, both included), ?group_by=, ?mine=1, ?format=csv. Everybody's, as over REST, unless `mine`."""
    today = timezone.now().date()
    first, told_first = _date(request.GET.get("from"), today - timedelta(days=29))
    last, told_last = _date(request.GET.get("to"), today)
    group_by = request.GET.get("group_by", "user")
    group_by = group_by if group_by in GROUPINGS else "user"
    error = ""
    if not (told_first and told_last):
        error = "A date is written like 2026-11-20."
    elif first > last:
        error = "The range ends before it begins."
    context: dict[str, Any] = {
        "first": first,
        "last": last,
        "group_by": group_by,
        "groupings": GROUPINGS.items(),
        "error": error,
        "mine": request.GET.get("mine") == "1",
    }
    if error:
        return show(request, "reports.html", context, status=400)
    start = datetime.combine(first, time.min, UTC)
    end = min(datetime.combine(last, time.max, UTC) + timedelta(microseconds=1), timezone.now())
    owner = person(request).get_username() if context["mine"] else ""
    found = reports.report(start, max(start, end), group_by, owner)
    if request.GET.get("format") == "csv":
        response = StreamingHttpResponse(reports.csv_stream(found), content_type="text/csv; charset=utf-8")
        name = f"gpushare-{group_by}-{first}-{last}.csv"
        response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return response
    rows = [row.as_dict() for row in found.rows]
    most = max((row["vram_gib_hours"] for row in rows), default=0)
    for row in rows:
        row["share"] = 100 * row["vram_gib_hours"] / most if most else 0
    priced = found.total.as_dict()["cost"] > 0
    context |= {"rows": rows, "total": found.total.as_dict(), "priced": priced}
    if group_by == "image":
        images = {row["group"] for row in rows}
        context["peaks"] = [each for each in peaks.peaks(person(request)) if each.image in images]
    return show(request, "reports.html", context)


def _date(text: str | None, otherwise: date) -> tuple[date, bool]:
    """The date, and whether it was one (nothing given is fine)."""
    if not text:
        return otherwise, True
    try:
        return date.fromisoformat(text), True
    except ValueError:
        return otherwise, False

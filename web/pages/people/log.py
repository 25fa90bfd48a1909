"""The audit log, for admins: newest first, by day, person and name, and whether it is whole."""

import json
from datetime import date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from web.audit import reading, verified
from web.errors import Problem
from web.pages.frame import page_view, person, show
from web.people.roles import Deed, require
from web.services import auditing
from web.spec import periods

PER_PAGE = 50
LONGEST = 2000  # characters of an entry's details that a page shows; REST has all


@never_cache
@page_view
def page(request: HttpRequest) -> HttpResponse:
    """?person=, ?name=, ?from= and ?to= (dates, both included), ?before= (an entry's id)."""
    try:
        require(person(request), Deed.READ_AUDIT)
    except Problem as problem:
        return show(request, "people/not_yours.html", {"problem": problem}, 403)
    asked = {key: request.GET.get(key, "").strip()[:255] for key in ("person", "name", "from", "to")}
    error, older = "", None
    rows: list[reading.NamedEntry] = []
    before = request.GET.get("before", "")
    try:
        found = reading.entries(asked["person"], asked["name"], _day(asked["from"]), _day(asked["to"], 1))
        number = int(before) if before.isascii() and before.isdecimal() and len(before) < 19 else None
        rows, older = reading.page(found, PER_PAGE, number)
    except ValueError as wrong:
        error = str(wrong)
    query = {key: value for key, value in asked.items() if value}
    context = {
        "asked": asked,
        "rows": [{"line": row, "detail": _detail(row.entry.detail)} for row in rows],
        "older": f"?{urlencode({**query, 'before': older})}" if older else "",
        "newest": f"?{urlencode(query)}" if before else "",
        "filtered": bool(query),
        "error": error,
        **_state(),
    }
    return show(request, "people/audit.html", context, status=400 if error else 200)


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def verify(request: HttpRequest) -> HttpResponse:
    """POST begins to verify it, GET tells how that goes."""
    problem = None
    try:
        require(person(request), Deed.READ_AUDIT)
        if request.method == "POST":
            auditing.verify(person(request))
    except Problem as refused:
        if refused.status == 403:
            return HttpResponse(refused.message, "text/plain; charset=utf-8", 403)
        problem = refused
    return render(request, "people/verified.html", _state() | {"problem": problem})


def _state() -> dict[str, Any]:
    return {"under_way": verified.under_way(), "last": verified.last(), "trouble": verified.trouble()}


def _day(text: str, later: int = 0) -> datetime | None:
    """The beginning of a day, or of the one so many `later`. Raises ValueError in words."""
    if not text:
        return None
    day: date = periods.point(text).date()
    return datetime.combine(day, time.min, timezone.get_current_timezone()) + timedelta(days=later)


def _detail(detail: Any) -> list[tuple[str, str]]:
    """What an entry tells beside its name, bounded: a launch may have a long environment."""
    items = detail.items() if isinstance(detail, dict) else [("", detail)]
    shown, left = [], LONGEST
    for name, value in items:
        if name == "name" or value in ("", None, [], {}):
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if left <= 0:
            break
        shown.append((name, text if len(text) <= left else f"{text[:left]}…"))
        left -= len(text)
    return shown

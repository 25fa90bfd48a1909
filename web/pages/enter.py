"""Where a link that signs in leads (web/people/links.py)."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from web.errors import Problem
from web.people import links


@never_cache
@sensitive_post_parameters("key")
@require_http_methods(["GET", "POST"])
def enter(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return render(request, "enter.html")
    try:
        links.use(request, request.POST.get("key", ""))
    except Problem as problem:
        return render(request, "enter.html", {"problem": problem.message}, status=problem.status)
    return redirect("dashboard")

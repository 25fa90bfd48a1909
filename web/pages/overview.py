"""The overview, and the rows of its table."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_GET

from web.history import samples
from web.models import Gpu, Node
from web.pages import table
from web.pages.frame import person, show
from web.people.roles import outdated


@gzip_page  # fifty rows are 70 kB, and 6 kB compressed
@login_required
@require_GET
def dashboard(request: HttpRequest) -> HttpResponse:
    told = outdated(Node.here(), person(request))
    return show(request, "dashboard.html", {"page": table.page(person(request), request.GET), "outdated": told})


@gzip_page
@login_required
@require_GET
def rows(request: HttpRequest) -> HttpResponse:
    return render(request, "parts/rows.html", {"page": table.page(person(request), request.GET)})


@login_required
@require_GET
def last_hour(request: HttpRequest, uuid: str) -> JsonResponse:
    return JsonResponse(samples.card(get_object_or_404(Gpu, uuid=uuid)))

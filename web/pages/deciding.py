"""How it decides: every policy in its own words, and which one is in force."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from web.models import Node
from web.pages.frame import show


@login_required
@require_GET
def page(request: HttpRequest) -> HttpResponse:
    return show(request, "deciding.html", {"node": Node.here()})

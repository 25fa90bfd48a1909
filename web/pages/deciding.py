"""How it decides: every policy in its own words, and which one is in force."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from web.models import Node
from web.pages.frame import page_view, show


@page_view
def page(request: HttpRequest) -> HttpResponse:
    return show(request, "deciding.html", {"node": Node.here()})

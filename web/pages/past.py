"""What was: the replay of a day, and who held what at one moment of it."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_GET

from web.errors import invalid
from web.history import samples
from web.models import Gpu
from web.pages.frame import show
from web.spec import periods


@login_required
@require_GET
def replay(request: HttpRequest) -> HttpResponse:
    gpus = Gpu.objects.all()
    chosen = gpus.filter(uuid=request.GET.get("gpu", "")).first() or gpus.first()
    return show(request, "history.html", {"gpus": gpus, "chosen": chosen})


@gzip_page
@login_required
@require_GET
def day(request: HttpRequest, uuid: str) -> JsonResponse:
    """24 hours up to ?until= (seconds since the epoch; now if it is left out)."""
    gpu = get_object_or_404(Gpu, uuid=uuid)
    try:
        until = _time(request.GET.get("until"))
    except ValueError as error:
        return _refused(error, "until")
    return JsonResponse(samples.holders(gpu, until - samples.DAY_LONG, until))


@login_required
@require_GET
def moment(request: HttpRequest, uuid: str) -> JsonResponse:
    """Who held what at ?at= (seconds since the epoch; now if it is left out)."""
    gpu = get_object_or_404(Gpu, uuid=uuid)
    try:
        at = _time(request.GET.get("at"))
    except ValueError as error:
        return _refused(error, "at")
    return JsonResponse(samples.moment(gpu, at))


def _time(text: str | None) -> datetime:
    return periods.second(text) if text else timezone.now()


def _refused(error: ValueError, field: str) -> JsonResponse:
    return JsonResponse(invalid(str(error), field).as_dict(), status=400)

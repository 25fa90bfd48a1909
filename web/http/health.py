"""/healthz: this process answers. /readyz: it can do its work."""

from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse

from web.services.issuing import scheduler_is_alive


def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """200 if the database answers and the scheduler lives, else 503; either way with what was found."""
    try:
        found = {"database": "ok", "scheduler": "ok" if scheduler_is_alive() else "no sign of life"}
    except DatabaseError as error:
        found = {"database": str(error)[:200], "scheduler": "unknown"}
    ready = all(state == "ok" for state in found.values())
    return JsonResponse({"status": "ok" if ready else "not ready", **found}, status=200 if ready else 503)

"""The one function from exception to response, and the answer to a path that is not there."""

import logging
from typing import Any

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import DatabaseError
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.permissions import SAFE_METHODS
from rest_framework.response import Response
from rest_framework.views import set_rollback

from web.errors import Problem
from web.spec.fields import problem_from

log = logging.getLogger(__name__)

_AWAY = "The database is busy, full or away."
# What is written in several transactions, or was committed before the database went, is not undone by an error.
_MAYBE_DONE = "The request may have been carried out, in whole or in part: check before you repeat it."
_CODES: dict[type[exceptions.APIException], str] = {
    exceptions.ParseError: "not_json",
    exceptions.NotAuthenticated: "not_authenticated",
    exceptions.AuthenticationFailed: "bad_token",
    exceptions.PermissionDenied: "forbidden",
    exceptions.NotFound: "not_found",
    exceptions.MethodNotAllowed: "method_not_allowed",
}


def handle(error: Exception, context: dict[str, Any]) -> Response:
    """Any exception out of a view → the error contract."""
    set_rollback()
    problem = problem_of(error)
    if isinstance(error, DatabaseError) and context["request"].method not in SAFE_METHODS:
        problem.message = f"{_AWAY} {_MAYBE_DONE}"
    if problem.status >= 500 and problem.code == "internal_error":
        log.error("A request failed", exc_info=error)
        got_request_exception.send(sender=None, request=context.get("request"))
    response = Response(problem.as_dict(), status=problem.status)
    if isinstance(error, exceptions.APIException):
        if header := getattr(error, "auth_header", None):
            response["WWW-Authenticate"] = header
    elif problem.status == 401:
        response["WWW-Authenticate"] = "Token"
    if problem.retry_after:
        response["Retry-After"] = problem.retry_after
    return response


def problem_of(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case exceptions.ValidationError():
            return problem_from(error.detail)
        case exceptions.APIException():
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "error")
            return Problem(code, str(error.detail), error.status_code)
        case Http404():
            return Problem("not_found", "Not found; it may have been removed.", 404)
        case PermissionDenied():
            return Problem("forbidden", str(error) or "You may not do this.", 403)
        case SuspiciousOperation():
            return Problem("invalid", "The request is malformed.", 400)
        case DatabaseError():
            log.error("The database refused", exc_info=error)
            return Problem("database_away", f"{_AWAY} Try again shortly.", 503)
    return Problem("internal_error", "Server error; the log has details.", 500)


@csrf_exempt  # or a POST to nowhere would be answered about cookies
def unknown_path(request: HttpRequest, *args: Any, **kwargs: Any) -> JsonResponse:
    """Answers every path under /api/ that leads nowhere."""
    hint = "" if request.path.endswith("/") else " Paths end with a slash."
    problem = Problem("not_found", f"There is nothing at {request.path[:200]}.{hint}", 404)
    return JsonResponse(problem.as_dict(), status=problem.status)

"""A request by a name that is not among GPUSHARE_ALLOWED_HOSTS: which setting that is, for whoever reads the answer."""

import logging
import re
import threading

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import split_domain_port
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string

from web.errors import Problem
from web.http.middleware import Respond, is_rest

# Not below web.http, whose lines are summed up: each name is worth one of its own.
log = logging.getLogger("gpushare.hosts")

NAMES = 50  # that the log tells of: strangers can make up as many as they like
NAME = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
SETTING = "GPUSHARE_ALLOWED_HOSTS"
CHECKS = ("/healthz", "/readyz")

_logged: set[str] = set()
_lock = threading.Lock()


def refuse_unknown_hosts(get_response: Respond) -> Respond:
    """Answers 400. In front of everything that would ask for the host's name.

    The health checks answer by any name: a load balancer or a kubelet asks by the address that it has. They return
    fixed words without a link, so a made-up name gains nothing.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.path_info in CHECKS and settings.ALLOWED_HOSTS:
            request.META["HTTP_HOST"] = settings.ALLOWED_HOSTS[0].replace("*", "localhost").lstrip(".")
        try:
            request.get_host()
        except DisallowedHost:
            return _refuse(request)
        return get_response(request)

    return respond


def _refuse(request: HttpRequest) -> HttpResponse:
    name = _name(request)
    _tell(name)
    if is_rest(request):
        return JsonResponse(_problem(name).as_dict(), status=400)
    return HttpResponse(render_to_string("400.html", {"host": name, "setting": SETTING}), status=400)


def _name(request: HttpRequest) -> str:
    """By which it was asked, without the port; empty if it is no name at all."""
    domain, _ = split_domain_port(request._get_raw_host())  # type: ignore[attr-defined]
    return domain if NAME.fullmatch(domain) else ""


def _problem(name: str) -> Problem:
    if not name:
        return Problem("unknown_host", "The Host header of the request is not a host name.", 400)
    return Problem(
        "unknown_host",
        f'This appliance does not answer to "{name}". An admin adds it to {SETTING} and restarts the appliance.',
        400,
    )


def _tell(name: str) -> None:
    with _lock:
        if name in _logged or len(_logged) >= NAMES:
            return
        _logged.add(name)
        last = len(_logged) == NAMES
    if name:
        allowed = " ".join([*settings.ALLOWED_HOSTS, name])
        log.warning(
            'A request for the host name "%s" was refused. If that is this host: %s="%s"', name, SETTING, allowed
        )
    else:
        log.warning("A request was refused: its Host header is not a host name.")
    if last:
        log.warning("Further refused names are not logged until the next start.")

"""How often one may ask: signed in, by user; else by address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle, UserRateThrottle

if TYPE_CHECKING:
    from rest_framework.views import APIView  # it reads the settings that name this module


class ByUser(UserRateThrottle):
    """Also counts what nobody signed in for, by address."""

    scope = "api"


class SignIn(SimpleRateThrottle):
    """Passwords cost the server time as well; what fails is slowed down further by `web.people.signin`."""

    scope = "sign-in"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}

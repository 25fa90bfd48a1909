"""Who is asking, and may this key do that at all. What a person may do to what is the services' question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from web.models import Token
from web.people import tokens
from web.people.roles import Deed, require

if TYPE_CHECKING:
    from rest_framework.views import APIView  # it reads the settings that name this module


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Token …`; `Bearer …` is the same."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        # Looked up already where the budgets are kept; if it was not, it is none, and this says why.
        token = getattr(request._request, "token", None) or tokens.of_header(get_authorization_header(request))
        return (token.user, token) if token else None

    def authenticate_header(self, request: Request) -> str:
        return "Token"


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "`Token` (or `Bearer`) and the token",
        }


class IsSignedIn(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return bool(request.user and request.user.is_authenticated)


class TokenAllows(BasePermission):
    """A token for reading cannot change anything."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if isinstance(request.auth, Token) and request.method not in SAFE_METHODS:
            tokens.require_write(request.auth)
        return True


def who_may(deed: Deed) -> list[type[BasePermission]]:
    """For whoever may do this, before anything is read: nobody else learns who or what there is."""

    class May(BasePermission):
        def has_permission(self, request: Request, view: APIView) -> bool:
            require(person(request), deed)
            return True

    return [IsSignedIn, TokenAllows, May]


def person(request: Request) -> User:
    """The signed-in user. Only for views behind IsSignedIn."""
    user: User = request.user  # type: ignore[assignment]
    return user


def body(request: Request) -> dict[str, Any]:
    """The JSON object that was sent; StrictJSONParser lets nothing else through."""
    data: dict[str, Any] = request.data  # type: ignore[assignment]
    return data

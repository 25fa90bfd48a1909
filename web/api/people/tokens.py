"""sign-in/, tokens/: keys for programs, made for a password or by another key."""

from typing import Any

from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.generics import GenericAPIView
from rest_framework.mixins import DestroyModelMixin, ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from web import audit
from web.api.protocol.access import person
from web.api.protocol.answer import Answer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.errors import Problem
from web.models import Token
from web.people import signin, tokens
from web.people.roles import manages
from web.spec.people import SignInSpec, TokenSpec


class TokenAnswer(Answer[Token]):
    """A token without its key, which nobody can read again. `expires_at` null: it lasts until it is ended."""

    user = serializers.CharField(source="user.username")

    class Meta:
        model = Token
        fields = ["id", "name", "scope", "user", "created_at", "expires_at", "last_used_at"]


class NewTokenAnswer(TokenAnswer):
    key = serializers.CharField(help_text="Shown this once.")

    class Meta(TokenAnswer.Meta):
        fields = [*TokenAnswer.Meta.fields, "key"]


def _answer(token: Token, key: str) -> Response:
    return Response({**TokenAnswer(token).data, "key": key}, status.HTTP_201_CREATED)


class SignIn(GenericAPIView[Token]):
    """A new token for a user name and a password. Its key is shown this once.

    401: the name or the password is wrong. 429: too many failed attempts; `Retry-After` says how many seconds to wait.
    """

    authentication_classes = []
    permission_classes = []
    serializer_class = NewTokenAnswer

    @extend_schema(request=SignInSpec, responses={201: NewTokenAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        spec = SignInSpec.parse(request.data)
        signin.require_patience(request._request, spec["username"])
        user = authenticate(request._request, username=spec["username"], password=spec["password"])
        if not isinstance(user, User):
            raise Problem("bad_credentials", "The user name or the password is wrong.", 401)
        signin.forget_failures(request._request, user.get_username())
        audit.record(user.get_username(), "sign-in")
        return _answer(*tokens.give(user, {name: spec[name] for name in ("name", "scope", "expires_in")}))


class Tokens(ListModelMixin, DestroyModelMixin, GenericViewSet[Token]):
    """Your own tokens. A token can make no other that may do more, or lives longer, than itself."""

    queryset = Token.objects.all()
    serializer_class = TokenAnswer
    lookup_value_converter = "int"

    def get_queryset(self) -> QuerySet[Token]:
        asks = person(self.request)
        found = Token.objects.select_related("user")
        return found if self.action == "destroy" and manages(asks) else found.filter(user=asks)

    @extend_schema(parameters=[PageQuery], responses={200: TokenAnswer(many=True), **ERRORS})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Your tokens that have not been ended, without their keys."""
        PageQuery.of(request)
        return super().list(request, *args, **kwargs)

    @extend_schema(request=TokenSpec, responses={201: NewTokenAnswer, **ERRORS})
    def create(self, request: Request) -> Response:
        """Makes a token: to read only, or to do all that you may (`scope`), for `expires_in` seconds or for good.

        201: with its key, which is shown this once. 403: the token that asks may not do that much itself.
        """
        by = request.auth if isinstance(request.auth, Token) else None
        return _answer(*tokens.give(person(request), request.data, by))

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Ends a token: it is refused from now on. An admin may end anybody's. 404: no such token, or not yours."""
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: Token) -> None:
        tokens.end(person(self.request), instance)

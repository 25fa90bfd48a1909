"""people/NAME/shares/, groups/NAME/shares/: what each is due of the cards beside others."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from web.api.people.people import MANAGED
from web.api.people.shown import PersonSharesAnswer, shares_of
from web.api.protocol.access import person
from web.api.protocol.outcome import ERRORS
from web.people import accounts, groups, shares
from web.spec.people import GroupSharesSpec, SharesSpec


class GroupSharesAnswer(serializers.Serializer[Any]):
    shares = serializers.IntegerField(allow_null=True, help_text="null: the group does not count.")


class OfPerson(APIView):
    permission_classes = MANAGED

    @extend_schema(responses={200: PersonSharesAnswer, **ERRORS})
    def get(self, request: Request, username: str) -> Response:
        """What a person is due beside others. For admins."""
        return self._answer(username)

    @extend_schema(request=SharesSpec, responses={200: PersonSharesAnswer, **ERRORS})
    def patch(self, request: Request, username: str) -> Response:
        """Other shares, a boost until a time, the group that counts; `"forgive": true` sets their usage to zero.

        For admins; 403: one's own are for another admin to raise. In force within a minute, as a rule at once.
        """
        shares.change(person(request), accounts.find(person(request), username), request.data)
        return self._answer(username)

    def _answer(self, username: str) -> Response:
        return Response(PersonSharesAnswer(shares_of(accounts.find(person(self.request), username))).data)


class OfGroup(APIView):
    permission_classes = MANAGED

    @extend_schema(responses={200: GroupSharesAnswer, **ERRORS})
    def get(self, request: Request, name: str) -> Response:
        """What the members of a group are due together. For admins."""
        return Response({"shares": shares.of_group(groups.find(person(request), name))})

    @extend_schema(request=GroupSharesSpec, responses={200: GroupSharesAnswer, **ERRORS})
    def patch(self, request: Request, name: str) -> Response:
        """Gives a group shares, with which it counts; null takes them away. For admins. 409: it is a role's."""
        return Response(
            {"shares": shares.change_group(person(request), groups.find(person(request), name), request.data)}
        )

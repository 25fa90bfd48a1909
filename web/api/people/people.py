"""people/: accounts, their roles, and what they may use."""

from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from web.api.people.shown import NewPersonAnswer, OnePersonAnswer, PersonAnswer, person_of, whole_person_of
from web.api.protocol.access import person, who_may
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.people import accounts
from web.people.roles import Deed
from web.spec.people import PersonChange, PersonSpec

MANAGED = who_may(Deed.MANAGE)


class PeopleQuery(PageQuery):
    q = serializers.CharField(required=False, help_text="Part of the name or of the e-mail address.")
    group = serializers.CharField(required=False, help_text="A group's name, or a role's for its members.")
    active = serializers.BooleanField(required=False)


def people_matching(query: dict[str, Any]) -> QuerySet[User]:
    found = User.objects.prefetch_related("groups").order_by("username")
    if "q" in query:
        found = found.filter(Q(username__icontains=query["q"]) | Q(email__icontains=query["q"]))
    if "group" in query:
        found = found.filter(groups__name=query["group"])
    if "active" in query:
        found = found.filter(is_active=query["active"])
    return found


class People(GenericAPIView[User]):
    permission_classes = MANAGED
    serializer_class = PersonAnswer

    @extend_schema(parameters=[PeopleQuery], responses={200: PersonAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> Response:
        """All accounts by name, those that are switched off included. For admins."""
        page = self.paginate_queryset(people_matching(PeopleQuery.of(request)))
        return self.get_paginated_response([PersonAnswer(person_of(user)).data for user in page or ()])

    @extend_schema(request=PersonSpec, responses={201: NewPersonAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        """Makes an account. Without `password` one is made up, which is answered this once.

        With `"password": null` it has none, and signs in through a directory or not at all. For admins. 409: the name
        is taken, in whatever case.
        """
        user, made_up = accounts.create(person(request), request.data)
        answer = whole_person_of(user) | {"password": made_up or None}
        return Response(NewPersonAnswer(answer).data, 201)


class OnePerson(APIView):
    permission_classes = MANAGED

    @extend_schema(responses={200: OnePersonAnswer, **ERRORS})
    def get(self, request: Request, username: str) -> Response:
        """One account: role, groups, its own allowance, and of each limit in force where it comes from. For admins."""
        return Response(OnePersonAnswer(whole_person_of(accounts.find(person(request), username))).data)

    @extend_schema(request=PersonChange, responses={200: OnePersonAnswer, **ERRORS})
    def patch(self, request: Request, username: str) -> Response:
        """Another role, other groups, another address or password; `"active": false` switches the account off.

        Switching off ends its tokens and sessions; its containers go on. For admins. 409 `last_admin`: nobody would be
        left who may manage people.
        """
        user = accounts.find(person(request), username)
        changed = accounts.change(person(request), user, request.data)
        return Response(OnePersonAnswer(whole_person_of(changed)).data)

"""groups/ and allowances/: who is in which group, and what persons and groups are given."""

from django.contrib.auth.models import Group, User
from drf_spectacular.utils import extend_schema
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from web.api.people.people import MANAGED
from web.api.people.shown import AllowanceAnswer, GroupAnswer, group_of
from web.api.protocol.access import person
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery
from web.errors import not_found
from web.models import Allowance
from web.people import accounts, granting, groups
from web.spec.people import AllowanceSpec, GroupSpec, MembersSpec


class Groups(GenericAPIView[Group]):
    permission_classes = MANAGED
    serializer_class = GroupAnswer

    @extend_schema(parameters=[PageQuery], responses={200: GroupAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> Response:
        """All groups by name with their members and allowances, those of the roles included. For admins."""
        PageQuery.of(request)
        found = Group.objects.select_related("allowance", "fair").prefetch_related("user_set").order_by("name")
        page = self.paginate_queryset(found)
        return self.get_paginated_response([GroupAnswer(group_of(group)).data for group in page or ()])

    @extend_schema(request=GroupSpec, responses={201: GroupAnswer, **ERRORS})
    def post(self, request: Request) -> Response:
        """Makes a group without members. For admins. 409: the name is taken, in whatever case."""
        return Response(GroupAnswer(group_of(groups.create(person(request), request.data))).data, 201)


class OneGroup(APIView):
    permission_classes = MANAGED

    @extend_schema(responses={200: GroupAnswer, **ERRORS})
    def get(self, request: Request, name: str) -> Response:
        """One group, with its members and its allowance. For admins."""
        return Response(GroupAnswer(group_of(groups.find(person(request), name))).data)

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def delete(self, request: Request, name: str) -> Response:
        """Deletes a group with its allowance; its members stay. For admins. 409: it is a role's."""
        groups.delete(person(request), groups.find(person(request), name))
        return Response(status=204)


class Members(APIView):
    permission_classes = MANAGED

    @extend_schema(request=MembersSpec, responses={200: GroupAnswer, **ERRORS})
    def post(self, request: Request, name: str) -> Response:
        """Puts people into a group (`add`) and takes others out (`remove`): all of them or, if one is unknown, nobody.

        For admins. 409: it is a role's; a role is given with PATCH of the person.
        """
        group = groups.change_members(person(request), groups.find(person(request), name), request.data)
        return Response(GroupAnswer(group_of(group)).data)


class Allowances(GenericAPIView[Allowance]):
    permission_classes = MANAGED
    serializer_class = AllowanceAnswer

    @extend_schema(parameters=[PageQuery], responses={200: AllowanceAnswer(many=True), **ERRORS})
    def get(self, request: Request) -> Response:
        """What has been given to whom, as it was given. Current limits for somebody is in people/. For admins."""
        PageQuery.of(request)
        page = self.paginate_queryset(Allowance.objects.select_related("user", "group").order_by("pk"))
        return self.get_paginated_response(AllowanceAnswer(page or (), many=True).data)


class _OneAllowance(APIView):
    permission_classes = MANAGED

    def subject(self, name: str) -> User | Group:
        raise NotImplementedError

    def _get(self, name: str) -> Response:
        allowance = granting.of(self.subject(name))
        if allowance is None:
            raise not_found("There is no allowance for this one.")
        return Response(AllowanceAnswer(allowance).data)

    def _patch(self, name: str) -> Response:
        given = granting.grant(person(self.request), self.subject(name), self.request.data)
        return Response(AllowanceAnswer(given).data)

    def _delete(self, name: str) -> Response:
        granting.withdraw(person(self.request), self.subject(name))
        return Response(status=204)


class PersonAllowance(_OneAllowance):
    def subject(self, name: str) -> User | Group:
        return accounts.find(person(self.request), name)

    @extend_schema(responses={200: AllowanceAnswer, **ERRORS})
    def get(self, request: Request, username: str) -> Response:
        """A person's own allowance. For admins. 404: there is none."""
        return self._get(username)

    @extend_schema(request=AllowanceSpec, responses={200: AllowanceAnswer, **ERRORS})
    def patch(self, request: Request, username: str) -> Response:
        """Gives a person an allowance, or changes what is named of it; null: no limit of their own. For admins."""
        return self._patch(username)

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def delete(self, request: Request, username: str) -> Response:
        """Takes a person's own allowance away; those of their groups go on. For admins."""
        return self._delete(username)


class GroupAllowance(_OneAllowance):
    def subject(self, name: str) -> User | Group:
        return groups.find(person(self.request), name)

    @extend_schema(responses={200: AllowanceAnswer, **ERRORS})
    def get(self, request: Request, name: str) -> Response:
        """A group's allowance, which each of its members has. For admins. 404: there is none."""
        return self._get(name)

    @extend_schema(request=AllowanceSpec, responses={200: AllowanceAnswer, **ERRORS})
    def patch(self, request: Request, name: str) -> Response:
        """Gives a group or a role an allowance, or changes what is named of it. For admins."""
        return self._patch(name)

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def delete(self, request: Request, name: str) -> Response:
        """Takes a group's allowance away: it binds none of its members any longer. For admins."""
        return self._delete(name)

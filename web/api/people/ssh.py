"""ssh/, ssh-keys/: the door for ssh, and one's own public keys for it."""

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.mixins import DestroyModelMixin, ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from web.api.protocol.access import person
from web.api.protocol.answer import Answer
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import PageQuery, Query
from web.models import SshKey, Token
from web.people import ssh_keys
from web.people.roles import manages
from web.spec.people import SshKeySpec


class SshAnswer(serializers.Serializer[Any]):
    port = serializers.IntegerField(allow_null=True, help_text="null: ssh is off on this appliance (GPUSHARE_SSH).")
    host_key = serializers.CharField(help_text="As it stands in known_hosts after the host's name.")
    fingerprint = serializers.CharField(help_text="Of the host key, as ssh-keygen -l says it.")


class Ssh(APIView):
    @extend_schema(responses={200: SshAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """Where containers are reached by ssh, with the container's name as the user's."""
        Query.of(request)
        port = settings.GPUSHARE_SSH[1] if settings.GPUSHARE_SSH else None
        answer = {"port": port, "host_key": ssh_keys.host_key_line(), "fingerprint": ssh_keys.host_fingerprint()}
        return Response(SshAnswer(answer).data)


class SshKeyAnswer(Answer[SshKey]):
    class Meta:
        model = SshKey
        fields = ["id", "name", "kind", "fingerprint", "created_at", "last_used_at"]


class SshKeys(ListModelMixin, DestroyModelMixin, GenericViewSet[SshKey]):
    """Your own public keys for ssh."""

    queryset = SshKey.objects.all()
    serializer_class = SshKeyAnswer
    lookup_value_converter = "int"

    def get_queryset(self) -> QuerySet[SshKey]:
        asks = person(self.request)
        found = SshKey.objects.select_related("user")
        return found if self.action == "destroy" and manages(asks) else found.filter(user=asks)

    @extend_schema(parameters=[PageQuery], responses={200: SshKeyAnswer(many=True), **ERRORS})
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Your public keys, and when each was added."""
        PageQuery.of(request)
        return super().list(request, *args, **kwargs)

    @extend_schema(request=SshKeySpec, responses={201: SshKeyAnswer, **ERRORS})
    def create(self, request: Request) -> Response:
        """Adds a public key: whoever has the private one comes into your containers by ssh, with your rights.

        403: the token that asks ends by itself, and would outlive itself so. 409: you have this key, or too many.
        """
        by = request.auth if isinstance(request.auth, Token) else None
        made = ssh_keys.add(person(request), request.data, by)
        return Response(SshKeyAnswer(made).data, status.HTTP_201_CREATED)

    @extend_schema(request=None, responses={204: None, **ERRORS})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Removes a key; connections by it end within seconds. An admin may remove anybody's. 404: no such key."""
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: SshKey) -> None:
        ssh_keys.remove(person(self.request), instance)

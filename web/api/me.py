"""me/: who one is here, what one may use, and what one uses."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from web.api.protocol.access import person
from web.api.protocol.outcome import ERRORS
from web.api.protocol.queries import Query
from web.history import reports
from web.models import Container
from web.people import allowances
from web.people.roles import Role, role_of


class AllowedAnswer(serializers.Serializer[Any]):
    """What the allowance lets this person have; null: no limit."""

    gpu_memory = serializers.IntegerField(allow_null=True, help_text="Bytes of quota at once.")
    containers = serializers.IntegerField(allow_null=True)
    gib_hours = serializers.FloatField(allow_null=True, help_text="VRAM held in seven days, GiB × hours.")
    priority_lowest = serializers.IntegerField(allow_null=True)
    priority_highest = serializers.IntegerField(allow_null=True)
    compute_weight = serializers.IntegerField(allow_null=True, help_text="The most that a container may weigh.")
    compute_limit = serializers.IntegerField(
        allow_null=True, help_text="Percent of a GPU's time at most, of each container."
    )
    images = serializers.ListField(child=serializers.CharField(), allow_null=True)
    gpus = serializers.ListField(child=serializers.CharField(), allow_null=True)


class UsageAnswer(serializers.Serializer[Any]):
    gpu_memory = serializers.IntegerField()
    containers = serializers.IntegerField()
    gib_hours = serializers.FloatField()


class MeAnswer(serializers.Serializer[Any]):
    username = serializers.CharField()
    role = serializers.ChoiceField([role.group for role in Role])
    limits = AllowedAnswer()
    usage = UsageAnswer()


class Me(APIView):
    @extend_schema(responses={200: MeAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """Who you are here, your role, what you may use at once (null: no limit), and what you use now."""
        Query.of(request)
        user, now = person(request), timezone.now()
        usage = {
            "gpu_memory": allowances.quota_held(user),
            "containers": Container.objects.live().filter(owner=user).count(),
            "gib_hours": reports.gib_hours(user.get_username(), now - reports.WEEK, now),
        }
        answer = {
            "username": user.get_username(),
            "role": role_of(user).group,
            "limits": allowances.limits_of(user),
            "usage": usage,
        }
        return Response(MeAnswer(answer).data)

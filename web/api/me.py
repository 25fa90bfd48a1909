"""me/: who one is here, what one may use, and what one uses."""

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
from web.people import allowances, passwords
from web.people.roles import Role, groups_besides_role, role_of
from web.spec.inside import mounts
from web.spec.people import PasswordSpec


class AllowedAnswer(serializers.Serializer[Any]):
    """What the allowance lets this person have; null: no limit."""

    gpu_memory = serializers.IntegerField(allow_null=True, help_text="Bytes of quota at once.")
    containers = serializers.IntegerField(allow_null=True)
    gib_hours = serializers.FloatField(allow_null=True, help_text="VRAM held in seven days, GiB × hours.")
    priority_lowest = serializers.IntegerField(allow_null=True)
    priority_highest = serializers.IntegerField(allow_null=True)
    compute_weight = serializers.IntegerField(allow_null=True, help_text="The most that a container may weigh.")
    compute_limit = serializers.IntegerField(
        allow_null=True, help_text="Highest limit of GPU time of one container, in percent."
    )
    reservations = serializers.IntegerField(allow_null=True, help_text="That are not over; null: 5.")
    reserved_gib_hours = serializers.FloatField(allow_null=True)
    reserved_days = serializers.IntegerField(allow_null=True, help_text="Days ahead; null: 14.")
    images = serializers.ListField(child=serializers.CharField(), allow_null=True)
    gpus = serializers.ListField(child=serializers.CharField(), allow_null=True)


class UsageAnswer(serializers.Serializer[Any]):
    gpu_memory = serializers.IntegerField()
    containers = serializers.IntegerField()
    gib_hours = serializers.FloatField()


class SourceAnswer(serializers.Serializer[Any]):
    """Where a limit comes from: `kind` is own, group or role, empty where there is none; `groups` by name."""

    kind = serializers.CharField(allow_blank=True)
    groups = serializers.ListField(child=serializers.CharField())
    explanation = serializers.CharField(help_text="In a sentence.")


class WeekAnswer(serializers.Serializer[Any]):
    """The last seven days."""

    containers = serializers.IntegerField()
    vram_gib_hours = serializers.FloatField()
    gpu_hours = serializers.FloatField(allow_null=True, help_text="That they computed; null: not known.")
    suspended_seconds = serializers.FloatField()
    rejects = serializers.IntegerField()


class MeAnswer(serializers.Serializer[Any]):
    username = serializers.CharField()
    role = serializers.ChoiceField([role.group for role in Role])
    groups = serializers.ListField(child=serializers.CharField(), help_text="Besides the role's.")
    limits = AllowedAnswer()
    sources = serializers.DictField(child=SourceAnswer(), help_text="Of each limit: where it comes from.")
    usage = UsageAnswer()
    week = WeekAnswer()
    volume_roots = serializers.ListField(
        child=serializers.CharField(), help_text="Folders of the host whose contents you may mount."
    )
    signs_in = serializers.ChoiceField(
        list(passwords.KINDS), help_text="Where your password is kept; `nowhere`: you have none."
    )


class Me(APIView):
    @extend_schema(responses={200: MeAnswer, **ERRORS})
    def get(self, request: Request) -> Response:
        """Who you are here, your role, what you may use at once (null: no limit), and what you use now."""
        Query.of(request)
        user, now = person(request), timezone.now()
        week = reports.report(now - reports.WEEK, now, "user", user.get_username()).total.as_dict()
        explained = allowances.explained(user)
        usage = {
            "gpu_memory": allowances.quota_held(user),
            "containers": Container.objects.live().filter(owner=user).count(),
            "gib_hours": week["vram_gib_hours"],
        }
        answer = {
            "username": user.get_username(),
            "role": role_of(user).group,
            "groups": sorted(groups_besides_role(user)),
            "limits": {name: limit.value for name, limit in explained.items()},
            "sources": explained,
            "usage": usage,
            "week": week,
            "volume_roots": mounts.roots_of(user.get_username()),
            "signs_in": passwords.place(user).kind,
        }
        return Response(MeAnswer(answer).data)


class Password(APIView):
    @extend_schema(request=PasswordSpec, responses={204: None, **ERRORS})
    def post(self, request: Request) -> Response:
        """Another password for yourself. Your sessions end, this one excepted; your tokens go on.

        403: `old` is not the password that holds now; 409: it is not kept here, and the message says where; 429: too
        many wrong ones.
        """
        asked = PasswordSpec.parse(request.data)
        passwords.change(request._request, person(request), asked["old"], asked["new"])
        return Response(status=204)

"""What may be said of people: tokens, passwords, accounts, groups and allowances. Whether it fits what is there is
decided in web/people/; here is what makes sense at all."""

from typing import Any

from django.core.validators import EmailValidator
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from web.models import Scope
from web.models.people import HEAVIEST
from web.models.shares import MOST_BOOST, MOST_SHARES
from web.spec import quotas
from web.spec.fields import (
    SizeField,
    StrictBoolean,
    StrictInteger,
    StrictNumber,
    StrictSerializer,
    StrictText,
    TimeField,
)
from web.spec.requests import PRIORITY_HIGHEST, PRIORITY_LOWEST

ROLES = ("viewer", "user", "operator", "admin")
LONGEST_PASSWORD = 4096  # characters
LONGEST_KEY = 8192
MOST_GUESTS = 64  # of one application
MOST_CONTAINERS = 1_000_000
MOST_GIB_HOURS = 1e9
MOST_RESERVATIONS = 10_000
MOST_DAYS = 366
_NULL: dict[str, Any] = {"required": False, "allow_null": True}
_LEFT: dict[str, Any] = {"required": False}


class TokenSpec(StrictSerializer):
    """A token. `scope` `read` can look and change nothing; `expires_in` null lasts until it is ended."""

    name = StrictText(allow_blank=True, default="", max_length=100)
    scope = serializers.ChoiceField(Scope.choices, default=Scope.WRITE)
    expires_in = StrictNumber(
        allow_null=True, default=None, min_value=1, max_value=10 * 366 * 86400, help_text="Seconds."
    )


class SshKeySpec(StrictSerializer):
    """A public key, as one line of ssh-keygen's file with the end .pub. Without `name`, its comment is one."""

    key = StrictText(max_length=LONGEST_KEY)
    name = StrictText(allow_blank=True, default="", max_length=100)


class GuestsSpec(StrictSerializer):
    guests = serializers.ListField(child=StrictText(max_length=150), max_length=MOST_GUESTS, help_text="User names.")


class SignInSpec(TokenSpec):
    username = StrictText(max_length=150)
    password = StrictText(max_length=LONGEST_PASSWORD)


class PasswordSpec(StrictSerializer):
    """Another password for oneself. `old` is the one that holds now."""

    old = StrictText(max_length=LONGEST_PASSWORD)
    new = StrictText(max_length=LONGEST_PASSWORD)


class PersonSpec(StrictSerializer):
    """An account. Without `password` one is made up and answered once; null: it has none and signs in elsewhere."""

    username = StrictText(max_length=150)
    role = serializers.ChoiceField(ROLES, required=False)
    email = StrictText(**_LEFT, allow_blank=True, max_length=254, validators=[EmailValidator()])
    groups = serializers.ListField(child=StrictText(max_length=150), max_length=100, **_LEFT)
    password = StrictText(**_NULL, max_length=LONGEST_PASSWORD)


class PersonChange(StrictSerializer):
    """What of an account is to be otherwise. `groups` are all that it is to be in, roles aside."""

    role = serializers.ChoiceField(ROLES, required=False)
    active = StrictBoolean(**_LEFT)
    email = StrictText(**_LEFT, allow_blank=True, max_length=254, validators=[EmailValidator()])
    groups = serializers.ListField(child=StrictText(max_length=150), max_length=100, **_LEFT)
    password = StrictText(**_LEFT, max_length=LONGEST_PASSWORD)


class GroupSpec(StrictSerializer):
    name = StrictText(max_length=150)


class MembersSpec(StrictSerializer):
    """User names: who is to be in the group from now on, and who is not."""

    add = serializers.ListField(child=StrictText(max_length=150), max_length=1000, **_LEFT)
    remove = serializers.ListField(child=StrictText(max_length=150), max_length=1000, **_LEFT)


_BETWEEN: dict[str, Any] = {
    "min_value": f"Shares are 1 to {MOST_SHARES}. With 0, a person would wait for ever.",
    "max_value": f"Shares are 1 to {MOST_SHARES}.",
}


class SharesSpec(StrictSerializer):
    """What a person is due, beside others. `share_group`: of several groups with shares the one that counts; null: the
    first by name. `boost` multiplies the shares until `boost_until`; 1 ends it. `forgive`: usage so far is set to 0."""

    shares = StrictInteger(min_value=1, max_value=MOST_SHARES, error_messages=_BETWEEN, **_LEFT)
    share_group = StrictText(max_length=150, **_NULL)
    boost = StrictInteger(min_value=1, max_value=MOST_BOOST, **_LEFT)
    boost_until = TimeField(**_NULL)
    forgive = StrictBoolean(**_LEFT)


class GroupSharesSpec(StrictSerializer):
    """What a group's members are due together. null: the group does not count."""

    shares = StrictInteger(
        min_value=1, max_value=MOST_SHARES, required=True, allow_null=True,
        error_messages=_BETWEEN | {"min_value": f"Shares are 1 to {MOST_SHARES}; null takes them away."},
    )  # fmt: skip


@extend_schema_field({"type": "array", "items": {"type": "string", "maxLength": 255}, "maxItems": 100})
class TextsField(serializers.Field[list[str], Any, list[str], Any]):
    """At most 100 texts, each once: patterns of images, GPUs by UUID or index. An empty list allows nothing."""

    def to_internal_value(self, data: Any) -> list[str]:
        if not isinstance(data, list) or not all(isinstance(text, str) for text in data) or len(data) > 100:
            raise serializers.ValidationError("This has to be a list of at most 100 texts.")
        if any(not text.strip() or len(text) > 255 or not text.isprintable() for text in data):
            raise serializers.ValidationError("Each has to be 1 to 255 characters that can be printed.")
        return list(dict.fromkeys(text.strip() for text in data))

    def to_representation(self, value: list[str]) -> list[str]:
        return value


class AllowanceSpec(StrictSerializer):
    """What of an allowance is to be otherwise; null: no limit."""

    gpu_memory = SizeField(smallest=0, **_NULL)
    containers = StrictInteger(min_value=0, max_value=MOST_CONTAINERS, **_NULL)
    gib_hours = StrictNumber(min_value=0, max_value=MOST_GIB_HOURS, **_NULL)
    priority_lowest = StrictInteger(min_value=PRIORITY_LOWEST, max_value=PRIORITY_HIGHEST, **_NULL)
    priority_highest = StrictInteger(min_value=PRIORITY_LOWEST, max_value=PRIORITY_HIGHEST, **_NULL)
    compute_weight = StrictInteger(min_value=1, max_value=HEAVIEST, **_NULL)
    compute_limit = StrictInteger(min_value=1, max_value=100, **_NULL)
    reservations = StrictInteger(min_value=0, max_value=MOST_RESERVATIONS, **_NULL)
    reserved_gib_hours = StrictNumber(min_value=0, max_value=MOST_GIB_HOURS, **_NULL)
    reserved_days = StrictInteger(min_value=0, max_value=MOST_DAYS, **_NULL)
    images = TextsField(**_NULL)
    gpus = TextsField(**_NULL)

    def validate_gpu_memory(self, value: int | None) -> int | None:
        """Nothing at all may be meant; two bytes are a unit that was left away."""
        try:
            return value and quotas.read(value)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None

"""What receivers, rules, silences and notifications may say."""

from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from rest_framework import serializers

from web.errors import invalid
from web.models import Happening, Receiver, Severity
from web.spec.fields import StrictBoolean, StrictNumber, StrictSerializer, StrictText, TimeField, problem_from

SECRET_LEAST = 16  # characters
LONGEST = 366 * 24 * 60.0  # minutes
ADDRESSES_MOST = 20


def check_address(text: str) -> str:
    """A URL that a message can be posted to. Raises ValidationError with a sentence."""
    try:
        parts = urlsplit(text)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not text.isascii() or not text.isprintable() or " " in text:
        raise serializers.ValidationError("This has to be an address such as https://hooks.lab:9093/path.")
    if "@" in parts.netloc:
        raise serializers.ValidationError(
            "The address must not contain a password: it is shown and written to the audit log."
        )
    return text


def check_mail(text: str) -> str:
    try:
        validate_email(text)
    except ValidationError:
        raise serializers.ValidationError(f"{text[:80]!r} is not an e-mail address.") from None
    return text


class Changeable(StrictSerializer):
    @classmethod
    def parse_change(cls, data: Any) -> dict[str, Any]:
        """Only what was given. Raises Problem."""
        serializer = cls(data=data, partial=True)
        if not serializer.is_valid():
            raise problem_from(serializer.errors)
        return dict(serializer.validated_data)


class ReceiverSpec(Changeable):
    """`url` and `secret` for a webhook, `url` for an Alertmanager (its root), `addresses` for mail."""

    name = StrictText(max_length=63)
    kind = serializers.ChoiceField(Receiver.Kind.choices)
    url = StrictText(allow_blank=True, default="", max_length=500)
    secret = StrictText(
        allow_blank=True, default="", max_length=200, write_only=True,
        help_text=f"At least {SECRET_LEAST} characters; never shown again.",
    )  # fmt: skip
    addresses = serializers.ListField(child=StrictText(max_length=254), default=list, max_length=ADDRESSES_MOST)
    monthly = StrictBoolean(default=False, help_text="Of mail: send last month's report on the first of each month.")
    enabled = StrictBoolean(default=True)

    def validate_name(self, value: str) -> str:
        if not value.isprintable() or value != value.strip():
            raise serializers.ValidationError("A name is one line of printable text.")
        return value

    def validate_url(self, value: str) -> str:
        return check_address(value) if value else value

    def validate_secret(self, value: str) -> str:
        if value and len(value) < SECRET_LEAST:
            raise serializers.ValidationError(
                f"This secret is short enough to be guessed: take {SECRET_LEAST} characters or more."
            )
        return value

    def validate_addresses(self, value: list[str]) -> list[str]:
        return [check_mail(each) for each in value]


def check_receiver(fields: dict[str, Any]) -> None:
    """Whether the fields go together. Raises Problem."""
    mail = fields["kind"] == Receiver.Kind.MAIL
    if mail and not fields["addresses"]:
        raise invalid("Mail needs at least one address.", "addresses")
    if fields["monthly"] and not mail:
        raise invalid("The monthly report is sent by mail only.", "monthly")
    if not mail and not fields["url"]:
        raise invalid("This needs an address to post to.", "url")
    if fields["kind"] == Receiver.Kind.WEBHOOK and not fields["secret"]:
        raise invalid("A webhook needs a secret: the signature shows that a message is from this appliance.", "secret")
    for name in ("url", "secret") if mail else ("addresses",):
        if fields[name]:
            raise invalid(f"A receiver of this kind has no {name}.", name)


class RuleSpec(Changeable):
    """`kinds` are those of attention; empty: all. `minutes`: how long it must have lasted before it is sent."""

    receiver = StrictText(max_length=63, help_text="Its name.")
    kinds = serializers.ListField(child=StrictText(max_length=32), default=list, max_length=64)
    severity = serializers.ChoiceField(Severity.choices, default=Severity.INFO)
    minutes = StrictNumber(default=0.0, min_value=0, max_value=LONGEST)
    repeat_minutes = StrictNumber(allow_null=True, default=None, min_value=1, max_value=LONGEST,
                                  help_text="null: sent once.")  # fmt: skip
    resolved = StrictBoolean(default=True)
    enabled = StrictBoolean(default=True)


class SilenceSpec(StrictSerializer):
    """Until `until`, nothing of this kind, of this person and of the container of this name is sent."""

    until = TimeField()
    kind = StrictText(allow_blank=True, default="", max_length=32)
    person = StrictText(allow_blank=True, default="", max_length=150)
    container = StrictText(allow_blank=True, default="", max_length=63)
    note = StrictText(allow_blank=True, default="", max_length=500)


class NotificationsSpec(Changeable):
    mail = StrictBoolean(required=False)
    browser = StrictBoolean(required=False)
    happenings = serializers.ListField(child=serializers.ChoiceField(Happening.choices), max_length=64, required=False)
    goes_on_minutes = StrictNumber(required=False, min_value=0, max_value=LONGEST)

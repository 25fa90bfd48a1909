"""What may be said of a preset."""

from rest_framework import serializers

from web.spec.fields import StrictSerializer, StrictText
from web.spec.requests import FIELDS


class PresetSpec(StrictSerializer):
    """A launch for others to click. `spec`: the body of a launch, `image` at least; {user} in its volumes is the name
    of whoever launches. `changes`: the fields that people are offered to change."""

    name = StrictText(max_length=63)
    icon = StrictText(allow_blank=True, default="", max_length=8)
    text = StrictText(allow_blank=True, default="", max_length=500)
    spec = serializers.DictField()
    changes = serializers.ListField(child=serializers.ChoiceField(sorted(FIELDS)), default=list)

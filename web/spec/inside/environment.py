"""Which environment variables a launch may set: none that would undo the quota or the choice of GPUs."""

import re
from typing import Any

from rest_framework import serializers

from web.spec.inside.reserved import undone_by

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LARGEST = 131072  # Linux takes no longer single argument or variable (MAX_ARG_STRLEN)


def check_environment(data: Any) -> dict[str, str]:
    """The variables, if all may be set."""
    if not isinstance(data, dict):
        raise serializers.ValidationError("This has to be an object of names and values.")
    if len(data) > 1000:
        raise serializers.ValidationError("This is more than 1000 variables.")
    for name, value in data.items():
        if not _NAME.fullmatch(name):
            raise serializers.ValidationError({name[:64]: ["This is not a name for an environment variable."]})
        if reason := undone_by(name):
            raise serializers.ValidationError({name[:64]: [f"{name} may not be set: {reason}."]}, code="forbidden")
        if not isinstance(value, str):
            raise serializers.ValidationError({name[:64]: ["The value has to be text."]})
        if len(value) + len(name) + 2 > _LARGEST:
            raise serializers.ValidationError({name[:64]: ["The value is too long."]})
    return dict(data)

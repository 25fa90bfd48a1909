"""Which environment variables a launch may set: none that would undo the quota or the choice of GPUs."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from rest_framework import serializers

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LARGEST = 131072  # Linux takes no longer single argument or variable (MAX_ARG_STRLEN)

# Pattern → what it would undo. The engine overrides the same names when an image brings them.
REFUSED = {
    "LD_*": "the loader has to load the library that keeps the quota",
    "GLIBC_TUNABLES": "the loader has to load the library that keeps the quota",
    "NVIDIA_*": "it would change which GPUs the container gets",
    "CUDA_VISIBLE_DEVICES": "it would change which GPUs the container gets",
    "CUDA_DEVICE_ORDER": "it would change which GPUs the container gets",
    "CUDA_MPS_*": "it would take the container to another daemon than its own",
    "CUDA_INJECTION*": "it would load a library before the one that keeps the quota",
    "GPUSHARE_*": "these are set by the appliance",
}


def check_environment(data: Any) -> dict[str, str]:
    """The variables, if all may be set."""
    if not isinstance(data, dict):
        raise serializers.ValidationError("This has to be an object of names and values.")
    if len(data) > 1000:
        raise serializers.ValidationError("This is more than 1000 variables.")
    for name, value in data.items():
        if not _NAME.fullmatch(name):
            raise serializers.ValidationError({name[:64]: ["This is not a name for an environment variable."]})
        for pattern, reason in REFUSED.items():
            if fnmatchcase(name.upper(), pattern):
                raise serializers.ValidationError({name[:64]: [f"{name} may not be set: {reason}."]}, code="forbidden")
        if not isinstance(value, str):
            raise serializers.ValidationError({name[:64]: ["The value has to be text."]})
        if len(value) + len(name) + 2 > _LARGEST:
            raise serializers.ValidationError({name[:64]: ["The value is too long."]})
    return dict(data)

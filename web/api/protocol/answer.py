"""What a record looks like from outside: nothing of it is written through its answer."""

from typing import Any, TypeVar

from django.db.models import Model
from rest_framework import serializers

M = TypeVar("M", bound=Model)


class Answer(serializers.ModelSerializer[M]):
    def get_extra_kwargs(self) -> dict[str, dict[str, Any]]:
        return {name: {"read_only": True} for name in self.Meta.fields}

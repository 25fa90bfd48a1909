"""Launches that admins have written for others to click. A preset gives no right: it is a launch with fewer questions.

Those that come with the product are rows like all others (web/migrations): an admin changes or removes them.
"""

import re
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from web import audit
from web.errors import Problem, conflict, invalid, not_found
from web.models import Node, Preset
from web.people.roles import Deed, require
from web.spec.presets import PresetSpec
from web.spec.requests import LaunchSpec

LOCAL = "local"  # the only image of the process engine


def found(pk: int) -> Preset:
    """Raises Problem."""
    preset = Preset.objects.filter(pk=pk).first()
    if preset is None:
        raise not_found("There is no such preset. An admin may have removed it.")
    return preset


def offered() -> list[Preset]:
    """Those that can run on a host of this appliance."""
    engines = set(Node.objects.listed().values_list("engine", flat=True))
    presets = [] if engines == {"kubernetes"} else list(Preset.objects.all())
    return [each for each in presets if engines != {"process"} or each.spec["image"] == LOCAL]


def launch_of(preset: Preset, owner: User) -> dict[str, Any]:
    """The body of a launch for this person."""
    return _filled(preset.spec, owner.get_username())


def _filled(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    volumes = spec.get("volumes")
    if not isinstance(volumes, list) or not all(isinstance(each, str) for each in volumes):
        return dict(spec)
    return {**spec, "volumes": [_of(each, name) for each in volumes]}


def _of(volume: str, name: str) -> str:
    """A folder is the person's by their name, as in GPUSHARE_VOLUME_ROOTS; a named volume has fewer letters."""
    source, _, rest = volume.partition(":")
    return f"{source.replace('{user}', name if source.startswith('/') else _plain(name))}:{rest}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_.-]", "-", name)


def save(user: User, asked: Any, preset: Preset | None = None) -> Preset:
    """Makes one, or changes it. Raises Problem."""
    require(user, Deed.PRESETS)
    spec = PresetSpec.parse(asked)
    try:
        LaunchSpec.parse(_filled(spec["spec"], "ada"))
    except Problem as problem:
        raise invalid(problem.message, f"spec.{problem.field}" if problem.field else "spec") from None
    if "name" in spec["spec"]:
        raise invalid("Leave the name out: two live containers cannot have the same name.", "spec.name")
    made = preset or Preset()
    for name, value in spec.items():
        setattr(made, name, value)
    try:
        with transaction.atomic():
            made.save()
            action = "preset-changed" if preset else "preset-made"
            audit.record(user.get_username(), action, made.pk, name=made.name, image=made.spec["image"])
    except IntegrityError:
        raise conflict(f'There is a preset "{made.name}" already.', code="name_taken", field="name") from None
    return made


def remove(user: User, preset: Preset) -> None:
    """Containers launched from it continue. Raises Problem."""
    require(user, Deed.PRESETS)
    number = preset.pk
    with transaction.atomic():
        preset.delete()
        audit.record(user.get_username(), "preset-removed", number, name=preset.name)

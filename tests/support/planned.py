"""Planned launches as people make them, for tests without a scheduler."""

from typing import Any

from django.contrib.auth.models import User

from web.models import Planned
from web.services import planning

OBSERVED = ("progress", "started_at", "finished_at", "ended", "reason", "waits", "place")


def plan(owner: User, name: str = "", **fields: Any) -> Planned:
    """Queued, unless `fields` of the launch say otherwise; observed ones are written as a scheduler would have."""
    observed = {each: fields.pop(each) for each in OBSERVED if each in fields}
    made = planning.launch(owner, {"image": "local", "name": name, "queue": True, **fields})
    assert isinstance(made, Planned)
    Planned.objects.filter(pk=made.pk).update(**observed)
    made.refresh_from_db()
    return made

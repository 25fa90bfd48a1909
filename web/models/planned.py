"""Planned launches: checked and recorded, without a container until the node's scheduler starts one.

A row is one launch, or a sweep of thousands: of its runs only those that have begun and are not done with are in
`progress`. Desired state (above "observed") is written by `web/services/planning.py` alone, which sets `unread` with
it; observed state by `scheduler/store/planned_runs.py`. A run's container and its place in `progress` are written in
one transaction, and no container may be the same attempt of the same run as another.
"""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from web.models.hosts import Node, ordered


class Ended(models.TextChoices):
    """How a planned launch ended."""

    OK = "ok"  # each run with exit code 0
    FAILED = "failed"
    NOT_STARTED = "not_started"  # it never could
    CANCELLED = "cancelled"


class PlannedQuerySet(models.QuerySet["Planned"]):
    def open(self) -> "PlannedQuerySet":
        """Those that have not ended."""
        return self.filter(finished_at=None)

    def in_order(self) -> "PlannedQuerySet":
        """As they would start: those that the scheduler has numbered, then by time; the held and ended behind."""
        at_once = (models.F(name).asc(nulls_first=True) for name in ("held_at", "begin_at"))
        return self.order_by(ordered("finished_at", down=True), ordered("place"), *at_once, "created_at", "pk")


class Planned(models.Model):
    """A launch that begins later. `spec` is the launch as `LaunchSpec` gives it, with {i} and {value} as written."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(
        max_length=63, help_text="Of one launch its container's; of a sweep what its runs begin with."
    )
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="planned")
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="planned")
    node_reason = models.CharField(max_length=500, blank=True)
    spec = models.JSONField()
    sweep = models.BooleanField(default=False)
    variable = models.CharField(max_length=64, blank=True, help_text="Another name for {value}.")
    values = models.JSONField(default=list, help_text="Of a sweep over values, one a run; empty: it is counted.")
    count = models.PositiveIntegerField(default=1, help_text="Runs.")
    at_once = models.PositiveIntegerField(default=1, help_text="Runs that may be under way at the same time.")
    after = models.JSONField(default=list, help_text="[{id, name, planned: bool, ended: ok|any|failed}].")
    begin_at = models.DateTimeField(null=True, blank=True)
    held_at = models.DateTimeField(null=True, blank=True, help_text="Since when a person holds it back.")
    retries = models.PositiveSmallIntegerField(default=0, help_text="Further attempts of each run that failed.")
    retry_pause = models.FloatField(default=60.0, help_text="Seconds before each.")
    gpus = models.JSONField(default=list, help_text="By UUID; empty: the scheduler chooses.")
    gpu_count = models.PositiveSmallIntegerField(default=1)
    quota = models.BigIntegerField(help_text="Bytes on each GPU, as far as is known without the image.")
    priority = models.SmallIntegerField(default=0)
    launch_key = models.CharField(max_length=128, null=True, blank=True)
    launch_digest = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    cancelled_by = models.CharField(max_length=150, blank=True)
    again_of = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    unread = models.BooleanField(default=True, help_text="The scheduler has not read this since it was changed.")
    # observed
    progress = models.JSONField(default=dict, help_text="scheduler/core/planned/progress.py")
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    ended = models.CharField(max_length=12, blank=True, choices=Ended)
    reason = models.CharField(max_length=500, blank=True, help_text="Why it ended so.")
    waits = models.CharField(max_length=500, blank=True, help_text="What it waits for, where the scheduler has said.")
    place = models.PositiveIntegerField(null=True, blank=True, help_text="From 1; the first of those that may start.")

    objects = PlannedQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name"], condition=Q(finished_at=None), name="one_open_planned_a_name"),
            models.UniqueConstraint(fields=["owner", "launch_key"], name="one_planned_a_launch_key"),
        ]
        indexes = [models.Index(fields=["finished_at", "created_at"]), models.Index(fields=["node", "unread"])]

    def __str__(self) -> str:
        return self.name

    @property
    def begun(self) -> int:
        """Runs that have begun."""
        return int(self.progress.get("next", 1)) - 1

    @property
    def done(self) -> int:
        """Runs that are done with, well or not."""
        return int(self.progress.get("ok", 0)) + int(self.progress.get("failed", 0))

    @property
    def running(self) -> list[tuple[int, int, str]]:
        """(run, attempt, container's id) of those under way."""
        its = self.progress.get("running", {})
        return sorted((int(run), int(number), str(id_)) for run, (id_, number, *_) in its.items())

    @property
    def state(self) -> str:
        """waiting, held, running, cancelled, or how it ended."""
        if self.ended:
            return self.ended
        if self.cancelled_at:
            return "cancelled"
        if self.progress.get("running"):
            return "running"
        return "held" if self.held_at else "waiting"

    @property
    def waits_for(self) -> str:
        """What keeps its next run from beginning, in a sentence; empty: nothing, or it has ended."""
        if self.finished_at is not None:
            return ""
        if self.cancelled_at is not None:
            return "It ends when what runs of it has."
        if self.held_at is not None:
            return "Held until it is released."
        if self.waits:
            return self.waits
        if self.after and self.started_at is None:
            return f"Begins after {_listed([each['name'] for each in self.after])}."
        if self.begin_at is not None and self.begin_at > timezone.now():
            return f"Begins at {self.begin_at:%Y-%m-%d %H:%M} UTC at the earliest."
        if self.progress.get("again"):
            return "A run that failed is tried again after a pause."
        if len(self.progress.get("running", {})) >= self.at_once:
            return "" if self.begun >= self.count else f"{self.at_once} of its runs are under way, as many as may be."
        return "" if self.begun >= self.count else "Waits for its turn."


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{', '.join(names[:2])} and {len(names) - 2} more"


class Preset(models.Model):
    """A launch that an admin has written for others to click: web/services/presets.py."""

    name = models.CharField(max_length=63, unique=True)
    icon = models.CharField(max_length=8, blank=True, help_text="A sign or two.")
    text = models.CharField(max_length=500, blank=True)
    spec = models.JSONField(default=dict, help_text="The body of a launch. {user} in volumes is the owner's name.")
    changes = models.JSONField(default=list, help_text="Fields that people are offered to change.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

"""What is known ahead of time: notices for everybody, windows of maintenance, reservations. `web/services/booked/`
alone writes them, but for what is observed. Times are aware UTC datetimes."""

from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import F, Q

from web.models import series
from web.models.hosts import Gpu, Node, large_of_nodes
from web.models.records import secrets


class AnnouncementQuerySet(models.QuerySet["Announcement"]):
    def current(self, now: datetime) -> "AnnouncementQuerySet":
        """Those that are not over, the next window first."""
        found = self.filter(Q(ends_at=None) | Q(ends_at__gt=now), withdrawn_at=None)
        large = *large_of_nodes("node__"), *large_of_nodes("gpu__node__")
        return (
            found.select_related("node", "gpu__node").defer(*large).order_by(F("begins_at").asc(nulls_last=True), "pk")
        )


class Announcement(models.Model):
    """A notice for all, or about one node or GPU. With `begins_at` it is a window of maintenance, up to `ends_at`."""

    class Then(models.TextChoices):
        """What becomes of containers when a window begins."""

        STAY = "stay"  # they go on, as long as the host does
        MOVE = "move"  # their GPU memory goes to host memory, and they are paused
        END = "end"  # they end, after a grace

    message = models.CharField(max_length=500)
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    gpu = models.ForeignKey(Gpu, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    begins_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True, help_text="Empty: until it is withdrawn.")
    then = models.CharField(max_length=4, choices=Then, default=Then.STAY)
    made_by = models.CharField(max_length=150)
    made_at = models.DateTimeField(auto_now_add=True)
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    notified_at = models.DateTimeField(null=True, blank=True, help_text="When people were notified of it.")
    begun_at = models.DateTimeField(null=True, blank=True, help_text="When its nodes were drained.")

    objects = AnnouncementQuerySet.as_manager()

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.message

    @property
    def about(self) -> str:
        """Of what, for people: "GPU 0 of a", "node a", "all nodes"."""
        if self.gpu is not None:
            return f"GPU {self.gpu.index} of {self.gpu.node.name}"
        return f"node {self.node.name}" if self.node is not None else "all nodes"

    @property
    def said(self) -> str:
        """The whole of it as one sentence or two, its times in UTC."""
        if self.begins_at is None or self.ends_at is None:
            return self.message if self.node is None and self.gpu is None else f"{self.about}: {self.message}"
        span = f"{self.begins_at:%Y-%m-%d %H:%M} to {self.ends_at:%Y-%m-%d %H:%M} UTC"
        return f"Maintenance of {self.about}, {span}: {self.message}"


class ReservationQuerySet(models.QuerySet["Reservation"]):
    def open(self, now: datetime) -> "ReservationQuerySet":
        """Those of which something is still to come, the first made first. Also of people whose accounts are off: it is
        kept for nobody then, and is theirs again once they are on."""
        return self.filter(over_at__gt=now).order_by("pk")

    def whole(self) -> "ReservationQuerySet":
        cards = models.Prefetch("cards", ReservedGpu.objects.select_related("gpu__node"))
        return self.select_related("user", "group").defer(*secrets("user")).prefetch_related(cards)


class Reservation(models.Model):
    """GPU memory for a person, or for the members of a group, from one time to another: once, daily or weekly.

    `starts` is a local time without a zone, in `zone`: each of a series starts at that time of its own day, whatever
    the clocks were changed to in between.
    """

    class Repeat(models.TextChoices):
        ONCE = "once"
        DAILY = "daily"
        WEEKLY = "weekly"

    class Short(models.TextChoices):
        """What if others are in the way that cannot be moved."""

        SHORT = "short"  # it begins with less
        END = "end"  # they end, after a grace

    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="reservations")
    group = models.ForeignKey(Group, null=True, on_delete=models.CASCADE, related_name="reservations")
    gpu_memory = models.BigIntegerField(null=True, help_text="Bytes on each of its GPUs; empty: all that they have.")
    starts = models.CharField(max_length=16, help_text="Local: 2026-12-04T08:00.")
    zone = models.CharField(max_length=64, help_text="Europe/Berlin.")
    minutes = models.PositiveIntegerField()
    repeat = models.CharField(max_length=6, choices=Repeat, default=Repeat.ONCE)
    times = models.PositiveSmallIntegerField(default=1)
    if_short = models.CharField(max_length=5, choices=Short, default=Short.SHORT)
    note = models.CharField(max_length=200, blank=True)
    made_by = models.CharField(max_length=150)
    made_at = models.DateTimeField(auto_now_add=True)
    over_at = models.DateTimeField(help_text="When the last of them ends, or was ended by a person.")

    objects = ReservationQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(user=None, group__isnull=False) | Q(user__isnull=False, group=None),
                name="reservation_of_a_person_or_a_group",
            )
        ]
        indexes = [models.Index(fields=["over_at"])]

    def __str__(self) -> str:
        return f"reservation {self.pk} of {self.holder}"

    @property
    def holder(self) -> str:
        return self.user.get_username() if self.user else f"group {self.group}"

    @property
    def spans(self) -> list[tuple[datetime, datetime]]:
        """All of them, in UTC: begin and end; without what a person ended before its time."""
        found = series.spans(self.starts, self.zone, self.minutes, self.repeat, self.times)
        return [(begins, min(ends, self.over_at)) for begins, ends in found if begins < self.over_at]

    def next_span(self, now: datetime) -> tuple[datetime, datetime] | None:
        """The one that is in force, or the next to begin."""
        return next((span for span in self.spans if span[1] > now), None)


class ReservedGpu(models.Model):
    """A GPU of a reservation."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="cards")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="reserved")
    # observed
    short = models.BigIntegerField(default=0, help_text="Bytes that lack now, or will lack when it begins.")

    class Meta:
        ordering = ["gpu__index"]
        constraints = [models.UniqueConstraint(fields=["reservation", "gpu"], name="each_gpu_once_a_reservation")]


class CalendarKey(models.Model):
    """The key to one person's calendar, which opens nothing else. Only its hash is kept."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="calendar_key")
    digest = models.CharField(max_length=64, unique=True, editable=False)

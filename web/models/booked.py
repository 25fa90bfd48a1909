"""What is known ahead of time: notices for everybody, and windows of maintenance. `web/services/booked/` alone writes
them. Times are aware UTC datetimes."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import F, Q

from web.models.hosts import Gpu, Node


class AnnouncementQuerySet(models.QuerySet["Announcement"]):
    def current(self, now: datetime) -> AnnouncementQuerySet:
        """Those that are not over, the next window first."""
        found = self.filter(Q(ends_at=None) | Q(ends_at__gt=now), withdrawn_at=None)
        return found.select_related("node", "gpu__node").order_by(F("begins_at").asc(nulls_last=True), "pk")


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
    told_at = models.DateTimeField(null=True, blank=True, help_text="When people were told of it.")
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

"""What has happened to containers and their memory: events, and samples of what they held. Observed, append-only.

Sizes are bytes. Times are aware UTC datetimes.
"""

from django.db import models

from web.models.hosts import Gpu
from web.models.records import Container


class AllocationEvent(models.Model):
    """One thing that happened to a container's memory or to the container itself. Observed, append-only.

    Written through `web.audit.append` alone, which seals each batch into the hash chain.
    """

    class Kind(models.TextChoices):
        ACCEPTED = "accepted"
        SUSPENDED = "suspended"
        RESUMED = "resumed"
        REJECTED = "rejected"
        FREED = "freed"
        STARTED = "started"
        ENDED = "ended"
        PAUSED = "paused"
        UNPAUSED = "unpaused"
        SWAPPED_OUT = "swapped_out"  # its memory on a card went to the host's
        SWAPPED_IN = "swapped_in"  # and came back
        CARD_CHANGED = "card_changed"  # it came back on another card
        NOT_MOVED = "not_moved"  # it was to give way, and could not
        NOT_RESTORED = "not_restored"  # its memory could not be brought back from host memory
        NOT_STOPPED = "not_stopped"  # others had the turn, and it went on computing
        KILLED = "killed"
        QUOTA = "quota"
        WARNED = "warned"  # its time is nearly over
        NOTIFIED = "notified"  # something is to begin that concerns it
        IDLE = "idle"  # it holds VRAM and has not computed for a while
        CARD_DRAINED = "card_drained"  # its card was taken out of service
        CARD_FULL = "card_full"  # the card had no memory although the lease had
        BYPASS = "bypass"  # a process of it holds VRAM past the shim, or forged its lease page

    at = models.DateTimeField(db_index=True)
    kind = models.CharField(max_length=16, choices=Kind)
    container = models.ForeignKey(Container, on_delete=models.PROTECT, related_name="events")
    gpu = models.ForeignKey(Gpu, null=True, blank=True, on_delete=models.PROTECT)
    pid = models.PositiveIntegerField(null=True, blank=True, help_text="On the host.")
    bytes = models.BigIntegerField(default=0)
    used_after = models.BigIntegerField(null=True, blank=True, help_text="What the container then held on this GPU.")
    waited = models.FloatField(default=0.0, help_text="Seconds.")
    policy = models.CharField(max_length=32, blank=True)
    detail = models.CharField(max_length=500, blank=True)
    seal = models.ForeignKey("web.Seal", on_delete=models.PROTECT, related_name="events")

    class Meta:
        ordering = ["id"]  # of one container the order in which they happened, which the time need not be
        indexes = [models.Index(fields=["container", "at"])]


class UsageSample(models.Model):
    """What a container held on one GPU at one time, or, rolled up, over a span of time. Observed."""

    class Span(models.IntegerChoices):
        SECOND = 1
        MINUTE = 60
        HOUR = 3600

    at = models.DateTimeField(help_text="The beginning of the span.")
    span = models.PositiveIntegerField(choices=Span, default=Span.SECOND, help_text="Seconds.")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="samples")
    container = models.ForeignKey(Container, null=True, on_delete=models.CASCADE, related_name="samples",
                                  help_text="Empty: the whole card.")  # fmt: skip
    used = models.BigIntegerField(help_text="Mean over the span.")
    peak = models.BigIntegerField(help_text="Highest within the span.")
    granted = models.BigIntegerField(default=0)
    utilisation = models.FloatField(null=True, help_text="Percent, mean over the span.")
    suspended = models.FloatField(default=0.0, help_text="Seconds of the span spent suspended.")
    had = models.FloatField(null=True, help_text="Seconds of the span that it computed; null: not known.")
    due = models.FloatField(null=True, help_text="Seconds of the span that were its by weight; null: no turns.")
    held_back = models.FloatField(null=True, help_text="Seconds of the span that it waited for its turn.")
    # Of a container with two GPUs both samples say the same.
    cpus_used = models.FloatField(null=True, help_text="Processors kept busy, mean over the span; null: not known.")
    memory_used = models.BigIntegerField(null=True, help_text="Host RAM, mean over the span; null: not known.")

    class Meta:
        ordering = ["at"]
        indexes = [models.Index(fields=["gpu", "span", "at"]), models.Index(fields=["container", "span", "at"])]

"""The audit's hash chain: every batch of events or entries gets a seal, and each seal holds the hash of the one before.

`web/audit/` writes and verifies it; nothing else does.
"""

from django.db import models


class Seal(models.Model):
    """One link: `hash` covers the seal before, this seal's number and time, and every row that points to it."""

    number = models.BigIntegerField(primary_key=True)
    at = models.DateTimeField()
    rows = models.PositiveIntegerField(help_text="How many rows it covers.")
    node = models.CharField(max_length=255, blank=True, help_text="By whose key, if it is a node's own.")
    previous = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return f"#{self.number} {self.hash[:12]}"


class Chain(models.Model):
    """One row: the last seal. Locked while a seal is added, and the proof that the tail was not cut off."""

    number = models.BigIntegerField(default=0)
    hash = models.CharField(max_length=64, default="0" * 64)


class AuditEntry(models.Model):
    """Something a person did, or tried to do. Append-only.

    Names and ids are copied, not referenced: the record outlives what it tells of.
    """

    at = models.DateTimeField(db_index=True)
    action = models.CharField(max_length=32, db_index=True)
    actor = models.CharField(max_length=150, blank=True)
    address = models.CharField(max_length=64, blank=True, help_text="Where it came from.")
    subject = models.CharField(max_length=255, blank=True, help_text="What it was done to: a container's id, a name.")
    detail = models.JSONField(default=dict, help_text="Before and after, or why it was refused.")
    seal = models.ForeignKey(Seal, on_delete=models.PROTECT, related_name="entries")

    class Meta:
        ordering = ["id"]
        verbose_name_plural = "audit entries"
        # Somebody's, or something's, by time: a page of a million rows takes as long as one of a hundred.
        indexes = [
            models.Index(fields=["actor", "at"], name="audit_actor_at"),
            models.Index(fields=["subject", "at"], name="audit_subject_at"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.subject}"


class Verification(models.Model):
    """One row: how the log was found when it was verified last (`web/audit/verified.py`)."""

    at = models.DateTimeField(null=True)
    ok = models.BooleanField(default=True)
    sentence = models.TextField(blank=True)
    broken_since = models.DateTimeField(null=True, help_text="When a fault was first found; null: there is none.")
    started_at = models.DateTimeField(null=True, help_text="While one is under way.")
    trouble = models.TextField(blank=True, help_text="Why the last attempt did not finish.")

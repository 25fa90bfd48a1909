"""Who gets which notification, and what became of each message (docs/notifying.md).

Receivers, rules, silences and wishes are what people want; `web/services/` alone writes them. Episodes, notices and
deliveries are what happened; `web/notifying/` alone writes them. Times are aware UTC datetimes.
"""

import uuid

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from web.models.history import AllocationEvent
from web.models.records import Container

GOES_ON_AFTER = 5.0  # minutes of waiting, or "it goes on" is not worth a word


class Severity(models.TextChoices):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Happening(models.TextChoices):
    """What a container's owner can be notified of."""

    GOES_ON = "goes_on"
    ENDED = "ended"
    KILLED = "killed"
    GIVES_WAY = "gives_way"
    PLANNED = "planned"  # maintenance, or a reservation of others, that is to begin
    CARD = "card"


def every_happening() -> list[str]:
    return list(Happening.values)


class Receiver(models.Model):
    """Where messages go."""

    class Kind(models.TextChoices):
        WEBHOOK = "webhook"
        ALERTMANAGER = "alertmanager"
        MAIL = "mail"

    name = models.CharField(max_length=63, unique=True)
    kind = models.CharField(max_length=12, choices=Kind)
    url = models.CharField(max_length=500, blank=True)
    secret = models.CharField(max_length=200, blank=True, help_text="Signs what is sent to a webhook.")
    addresses = models.JSONField(default=list, help_text="Of e-mail.")
    monthly = models.BooleanField(default=False, help_text="Is sent last month's report; of mail.")
    enabled = models.BooleanField(default=True)
    # observed
    reported = models.CharField(max_length=7, blank=True, help_text="The month of the last report: 2026-10.")
    failures = models.PositiveIntegerField(default=0, help_text="Times in a row that it could not be reached.")
    retry_at = models.DateTimeField(null=True, help_text="Until then it is not tried, because it could not be reached.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Rule(models.Model):
    """Which notifications a receiver gets."""

    receiver = models.ForeignKey(Receiver, on_delete=models.CASCADE, related_name="rules")
    kinds = models.JSONField(default=list, help_text="Of attention; empty: all.")
    severity = models.CharField(max_length=8, choices=Severity, default=Severity.INFO, help_text="The least.")
    minutes = models.FloatField(default=0.0, validators=[MinValueValidator(0.0)], help_text="That it has lasted.")
    repeat_minutes = models.FloatField(null=True, help_text="Sent again so often while it lasts; empty: once.")
    resolved = models.BooleanField(default=True, help_text="Sent when it is over, too.")
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering = ["id"]


class Silence(models.Model):
    """Notifications that are not sent for a while. An empty field is any."""

    until = models.DateTimeField()
    kind = models.CharField(max_length=32, blank=True)
    person = models.CharField(max_length=150, blank=True)
    container = models.CharField(max_length=63, blank=True, help_text="Its name.")
    note = models.CharField(max_length=500, blank=True)
    made_by = models.CharField(max_length=150)
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["until", "id"]


class Wish(models.Model):
    """The notifications that one person wants about their own containers, and how. No row: what a new one would say."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="wish")
    mail = models.BooleanField(default=False)
    browser = models.BooleanField(default=True)
    happenings = models.JSONField(default=every_happening, help_text="Of Happening.")
    goes_on_minutes = models.FloatField(default=GOES_ON_AFTER, validators=[MinValueValidator(0.0)])


class Episode(models.Model):
    """A time during which something needed somebody: one attention item from its first to its last look."""

    key = models.CharField(max_length=300, help_text="The item's.")
    kind = models.CharField(max_length=32)
    person = models.CharField(max_length=150, blank=True)
    container = models.CharField(max_length=63, blank=True, help_text="Its name.")
    container_id = models.CharField(max_length=36, blank=True)
    gpu = models.CharField(max_length=64, blank=True, help_text="UUID.")
    node = models.CharField(max_length=255, blank=True, help_text="The name of the one it is about; empty: none.")
    message = models.TextField()
    began_at = models.DateTimeField()
    gone_at = models.DateTimeField(null=True, help_text="Since when it is not seen; it may come back for a while.")
    ended_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["key"], condition=Q(ended_at=None), name="one_open_episode_a_key"),
        ]


class Notice(models.Model):
    """Something that happened to a container whose owner wants to be notified; or, without one, a notice for all."""

    event = models.OneToOneField(AllocationEvent, null=True, on_delete=models.CASCADE)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notices")
    container = models.ForeignKey(Container, null=True, on_delete=models.CASCADE)
    kind = models.CharField(max_length=9, choices=Happening)
    message = models.CharField(max_length=700)
    at = models.DateTimeField(db_index=True)
    browser = models.BooleanField(help_text="Shown in the browser.")

    class Meta:
        ordering = ["id"]


class Delivery(models.Model):
    """One message to one receiver, or about one notice to its owner. `id` goes with it each time it is tried."""

    class Phase(models.TextChoices):
        FIRING = "firing"
        RESOLVED = "resolved"
        TEST = "test"
        NOTICE = "notice"

    class Outcome(models.TextChoices):
        SENT = "sent"
        GIVEN_UP = "given_up"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    receiver = models.ForeignKey(Receiver, null=True, on_delete=models.CASCADE, related_name="deliveries")
    episode = models.ForeignKey(Episode, null=True, on_delete=models.CASCADE, related_name="deliveries")
    notice = models.OneToOneField(Notice, null=True, on_delete=models.CASCADE)
    phase = models.CharField(max_length=8, choices=Phase)
    round = models.PositiveIntegerField(default=0, help_text="How often it was sent before.")
    made_at = models.DateTimeField()
    due_at = models.DateTimeField(help_text="When it is tried next.")
    tries = models.PositiveIntegerField(default=0)
    tried_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=500, blank=True, help_text="Of the last try.")
    claim = models.UUIDField(null=True, help_text="Of the process that sends it now.")
    claimed_until = models.DateTimeField(null=True)
    done_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=8, choices=Outcome, blank=True)

    class Meta:
        ordering = ["-made_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["receiver", "episode", "phase", "round"], name="each_message_once"),
        ]
        indexes = [models.Index(fields=["done_at", "due_at"])]

    @property
    def text(self) -> str:
        """The sentence that it carries."""
        if self.notice is not None:
            return self.notice.message
        return self.episode.message if self.episode else "A test: an admin asked whether messages arrive."


class Watch(models.Model):
    """One row: which process looks at what there is to tell, and up to which event it has."""

    holder = models.UUIDField(null=True)
    until = models.DateTimeField(null=True)
    event = models.BigIntegerField(null=True, help_text="The last allocation event that was looked at.")

"""Tokens, and what people may use. Users and groups are Django's; roles are groups (`web/people/roles.py`)."""

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

HEAVIEST = 1000  # the most that a container may weigh in the turns; 100 is usual, as with docker's CPU shares
WEIGHTS = [MinValueValidator(1), MaxValueValidator(HEAVIEST)]
PERCENT = [MinValueValidator(1), MaxValueValidator(100)]


class Scope(models.TextChoices):
    READ = "read"
    WRITE = "write"


class Token(models.Model):
    """A key to the REST API. Only its hash is kept: the key itself is shown once, when it is made."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100, blank=True, help_text="What it is for.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scope = models.CharField(max_length=5, choices=Scope, default=Scope.WRITE)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="To the minute.")

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.user}: {self.name or 'token'}"


class SshKey(models.Model):
    """A public key with which somebody signs in by ssh. Two accounts may have the same one: it proves no name."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="ssh_keys")
    name = models.CharField(max_length=100, blank=True, help_text="What it is on.")
    kind = models.CharField(max_length=64)
    fingerprint = models.CharField(max_length=64, help_text="SHA256:…, as ssh-keygen -l says it.")
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="To the minute.")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["user", "fingerprint"], name="ssh_key_once_a_person")]
        indexes = [models.Index(fields=["fingerprint"], name="ssh_key_by_fingerprint")]

    def __str__(self) -> str:
        return f"{self.user}: {self.name or self.fingerprint}"


class SignInLink(models.Model):
    """A link that signs in once. Only the hash of its key is kept; using it deletes it."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    expires_at = models.DateTimeField()
    loopback = models.BooleanField(help_text="Good for a browser on this host only.")

    def __str__(self) -> str:
        return f"{self.user}, until {self.expires_at}"


class AppSession(models.Model):
    """One browser at the host name of one application (web/door/entering.py): at first a code that is good once, then
    a cookie. Of both only the hash is kept."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    container = models.ForeignKey("Container", on_delete=models.CASCADE, related_name="+")
    port = models.PositiveIntegerField()
    session = models.CharField(max_length=40, editable=False, help_text="At the dashboard: the key of it.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    browser = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Hash of what that browser alone has; empty: it came."
    )
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.user}, port {self.port}, until {self.expires_at}"


class AppGuest(models.Model):
    """Somebody who may open the application of another person's container, and nothing else of it."""

    container = models.ForeignKey("Container", on_delete=models.CASCADE, related_name="guests")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["container", "user"], name="guest_once_a_container")]

    def __str__(self) -> str:
        return f"{self.user}"


class Membership(models.Model):
    """How an account begins and ends: an invitation that is open, and the day on which it ends by itself.

    Of an invitation's key only the hash is kept; whoever has the key chooses the account's password, once.
    """

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="membership")
    digest = models.CharField(max_length=64, null=True, unique=True, editable=False, help_text="Empty: none is open.")
    expires_at = models.DateTimeField(null=True, help_text="Of the invitation.")
    ends_at = models.DateTimeField(null=True, db_index=True, help_text="When the account is disabled; empty: never.")
    warned_at = models.DateTimeField(null=True, help_text="When its owner was notified by mail.")

    def __str__(self) -> str:
        return f"{self.user}, until {self.ends_at}"


class Allowance(models.Model):
    """What one user, or each member of a group, may use. An empty field sets no limit.

    A user's own row goes before the groups', field by field; of several groups the most generous counts.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="allowance"
    )
    group = models.OneToOneField(Group, null=True, blank=True, on_delete=models.CASCADE, related_name="allowance")
    gpu_memory = models.BigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(0)], help_text="Bytes of quota at once, over all GPUs."
    )
    containers = models.PositiveIntegerField(null=True, blank=True, help_text="Containers at once.")
    gib_hours = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0.0)], help_text="VRAM held, GiB × hours in seven days."
    )
    priority_lowest = models.SmallIntegerField(null=True, blank=True)
    priority_highest = models.SmallIntegerField(null=True, blank=True)
    compute_weight = models.PositiveSmallIntegerField(
        null=True, blank=True, validators=WEIGHTS, help_text="The most that a container may weigh: 1 to 1000."
    )
    compute_limit = models.PositiveSmallIntegerField(
        null=True, blank=True, validators=PERCENT, help_text="The most that a container may compute: percent of a card."
    )
    reservations = models.PositiveIntegerField(null=True, blank=True, help_text="Reservations that are not over.")
    reserved_gib_hours = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0.0)], help_text="GiB × hours reserved from now on."
    )
    reserved_days = models.PositiveIntegerField(null=True, blank=True, help_text="Days ahead that may be reserved.")
    images = models.JSONField(null=True, blank=True, help_text='Patterns, such as ["pytorch/*", "local"].')
    gpus = models.JSONField(null=True, blank=True, help_text="UUIDs of the GPUs that may be used.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user=None, group__isnull=False) | Q(user__isnull=False, group=None),
                name="allowance_of_a_user_or_a_group",
            )
        ]

    def __str__(self) -> str:
        return str(self.user or self.group)

    def clean(self) -> None:
        """Not validators of the two fields: Django asks none about a value that is empty, such as {}."""
        examples = {"images": '["lab/*"]', "gpus": '["GPU-5a1b…"]'}
        wrong = {
            name: f"This has to be a list of texts, such as {example}; [] allows nothing, an empty field everything."
            for name, example in examples.items()
            if not _is_list_of_texts(getattr(self, name))
        }
        lowest, highest = self.priority_lowest, self.priority_highest
        if lowest is not None and highest is not None and lowest > highest:
            wrong["priority_lowest"] = f"This is above the highest, {highest}: nothing could be launched."
        if wrong:
            raise ValidationError(wrong)


def _is_list_of_texts(value: object) -> bool:
    """Or None. Printable: PostgreSQL could not store a NUL character or half of a surrogate pair."""
    if value is None:
        return True
    return isinstance(value, list) and all(isinstance(text, str) and text.isprintable() for text in value)

"""What people and groups are due of the cards, and what they have had: the rows of fair share (docs/deciding.md).

Memory over time is GiB × hours, held on a card while somebody waited there.
"""

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from web.models.hosts import Gpu

MOST_SHARES = 1000
MOST_BOOST = 100
USUAL_SHARES = 1
_SHARES = [MinValueValidator(1), MaxValueValidator(MOST_SHARES)]


class GroupShares(models.Model):
    """A group that counts in fair share: its members together are due so much. A group without a row does not count."""

    group = models.OneToOneField(Group, on_delete=models.CASCADE, related_name="fair")
    shares = models.PositiveSmallIntegerField(validators=_SHARES)

    def __str__(self) -> str:
        return f"{self.group}: {self.shares}"


class PersonShares(models.Model):
    """What an admin chose for one person; somebody without a row has the defaults."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="fair")
    shares = models.PositiveSmallIntegerField(default=USUAL_SHARES, validators=_SHARES)
    share_group = models.ForeignKey(
        Group, null=True, blank=True, on_delete=models.SET_NULL, related_name="+",
        help_text="Of several groups with shares the one that counts; empty: the first by name.",
    )  # fmt: skip
    boost = models.PositiveSmallIntegerField(
        default=1, validators=[MinValueValidator(1), MaxValueValidator(MOST_BOOST)], help_text="Multiplies the shares."
    )
    boost_until = models.DateTimeField(null=True, blank=True)
    forgiven = models.PositiveIntegerField(default=0, help_text="How often their usage was set to zero.")

    def __str__(self) -> str:
        return f"{self.user}: {self.shares}"


class Usage(models.Model):
    """A person's ledger on one card, decayed to the moment `at`. Observed: its host's scheduler writes it each minute.

    By name, as the audit log has people: a scheduler that starts without the database has no other key.
    """

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="usage")
    person = models.CharField(max_length=150)
    had = models.FloatField(default=0.0)
    due = models.FloatField(default=0.0)
    at = models.DateTimeField(help_text="By the database's clock, as far as the host knows it.")
    forgiven = models.PositiveIntegerField(default=0, help_text="PersonShares.forgiven, as this takes it into account.")
    ratio = models.FloatField(default=1.0, help_text="Had of what was due, on all hosts: what the queue goes by.")
    share = models.BigIntegerField(
        null=True, help_text="Fair share of the card now, in bytes; null: no container waits there."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["gpu", "person"], name="one_usage_a_gpu")]

    def __str__(self) -> str:
        return f"{self.person} on {self.gpu}"


class UsageHour(models.Model):
    """The same of one hour, not decayed: what pages and reports add up. Observed."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="usage_hours")
    person = models.CharField(max_length=150)
    hour = models.PositiveIntegerField(help_text="Hours since 1970, UTC.")
    had = models.FloatField(default=0.0)
    due = models.FloatField(default=0.0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["gpu", "person", "hour"], name="one_usage_an_hour")]
        indexes = [models.Index(fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.person} on {self.gpu}, hour {self.hour}"

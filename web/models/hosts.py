"""The hosts that run a scheduler, and their GPUs. Sizes are bytes. Times are aware UTC datetimes."""

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.expressions import OrderBy
from django.db.models.functions import Now
from django.utils import timezone

SUPPOSED = float(1 << 30)  # bytes a second, before a scheduler has said what it supposes
SKEW = 5.0  # seconds between a host's clock and the database's that somebody should know of
SIGN_OF_LIFE = timedelta(seconds=5)  # a scheduler that was silent for longer counts as away
LAPSES = timedelta(seconds=15)  # after its last sign of life, or its start, a scheduler's node name may be another's


def large_of_nodes(path: str = "") -> list[str]:
    """What of a node's row is long and changes all the time, to `defer` where many are read; `path` leads to them."""
    return [f"{path}{name}" for name in ("policies", "figures", "moved", "nearly_full", "outdated")]


def ordered(field: str, *, down: bool = False) -> OrderBy:
    """By this field, what has nothing there behind all others: by themselves, databases do not agree about that."""
    by = models.F(field)
    return by.desc(nulls_last=True) if down else by.asc(nulls_last=True)


def lapsed(path: str = "") -> Q:
    """Nodes whose names another scheduler may take, by the database's clock; `path` leads to them."""
    lately = Now() - LAPSES
    return ~Q(**{f"{path}seen_at__gte": lately}) & ~Q(**{f"{path}started_at__gte": lately})


class NodeQuerySet(models.QuerySet["Node"]):
    def listed(self) -> "NodeQuerySet":
        """Those that nobody has removed."""
        return self.filter(removed_at=None)

    def alive(self) -> "NodeQuerySet":
        """Those whose schedulers live, by the database's clock: for whoever asks on any host."""
        return self.filter(seen_at__gte=Now() - SIGN_OF_LIFE)


class Node(models.Model):
    """One host that runs a scheduler. `seen_at` and `started_at` are by the database's clock: hosts' may differ."""

    name = models.CharField(max_length=255, unique=True)
    drained_at = models.DateTimeField(null=True, blank=True, help_text="Since when it takes no new launches.")
    labels = models.JSONField(default=dict, blank=True, help_text="{name: value}, texts: what people say of it.")
    removed_at = models.DateTimeField(null=True, blank=True, help_text="Since when it counts no more; history stays.")
    policy_asked = models.CharField(
        max_length=32, blank=True, help_text="What an admin chose; empty: as GPUSHARE_POLICY says."
    )
    # observed
    holder = models.CharField(
        max_length=128, blank=True, help_text="Whose scheduler has this name: a boot and a GPUSHARE_HOME; empty: free."
    )
    release = models.CharField(max_length=32, blank=True, help_text="Of its scheduler.")
    engine = models.CharField(max_length=16, blank=True)
    placer = models.CharField(
        max_length=64,
        blank=True,
        help_text="Who chooses the node of what is launched here: swarm and its ID; empty: nobody else.",
    )
    policy = models.CharField(max_length=32, blank=True, help_text="The name of the one in force.")
    policies = models.JSONField(default=list, help_text="[{name, explanation, bound, source}], the default first.")
    driver = models.CharField(max_length=64, blank=True)
    simulated = models.BooleanField(default=False)
    started_at = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField(null=True, blank=True, help_text="The scheduler's last sign of life.")
    late = models.FloatField(default=0, help_text="Seconds: the longest that its decisions were held up lately.")
    engine_error = models.CharField(max_length=500, blank=True, help_text="Why the engine is away; empty if it is not.")
    outdated = models.JSONField(default=list, help_text="What of the engine is older than it should be: sentences.")
    cannot_swap = models.CharField(
        max_length=500, blank=True, help_text="Why VRAM cannot be moved to host memory here; empty if it can."
    )
    figures = models.JSONField(default=dict, help_text="Counts of the scheduler's own work since its start.")
    moved = models.JSONField(default=dict, help_text="{first, out, back: [bytes, seconds]}: transfers so far, lately.")
    nearly_full = models.JSONField(
        default=list,
        help_text="[{of, free, total, since}]: what is nearly full; bytes, and seconds since 1970.",
    )
    audit_error = models.CharField(
        max_length=500, blank=True, help_text="Why the audit log has no new anchor; empty if it has."
    )
    cannot_turn = models.CharField(
        max_length=500, blank=True, help_text="Why containers cannot take turns on a card here; empty if they can."
    )

    last_event = models.BigIntegerField(default=0, help_text="The number of its last event that is written here.")
    outbox = models.CharField(max_length=36, blank=True, help_text="Which outbox of its host gave the numbers.")
    skew = models.FloatField(default=0, help_text="Seconds by which its clock is ahead of the database's.")
    link_key = models.CharField(
        max_length=100, blank=True, help_text="Of its scheduler, for the link to the web side (web/relay/)."
    )
    role = models.CharField(max_length=63, blank=True, help_text="Its own PostgreSQL role; empty: it has none.")

    objects = NodeQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name

    @classmethod
    def several(cls) -> bool:
        """Whether people need the name of the node that is meant."""
        return cls.objects.listed().count() > 1

    @classmethod
    def here(cls) -> "Node | None":
        """The host that people see: the one of our name, else the one whose scheduler was seen last."""
        own = Q(name=settings.GPUSHARE_NODE)
        nodes = cls.objects.listed()
        return nodes.filter(own).first() or nodes.order_by(ordered("seen_at", down=True), "-pk").first()

    def rates(self, *, first: bool) -> dict[str, float]:
        """Bytes a second with which memory moves `out` and `back`; the first time that a program's goes is slower."""
        rates = {kind: size / seconds for kind, (size, seconds) in self.moved.items() if size > 0 and seconds > 0}
        return {"out": rates.get("first" if first else "out", SUPPOSED), "back": rates.get("back", SUPPOSED)}

    @property
    def takes_launches(self) -> bool:
        return self.is_alive() and self.drained_at is None

    def is_alive(self) -> bool:
        """By this host's clock, which the web side's has to be right for."""
        return self.seen_at is not None and timezone.now() - self.seen_at < SIGN_OF_LIFE


class InvitationQuerySet(models.QuerySet["Invitation"]):
    def good(self) -> "InvitationQuerySet":
        """Those with which a host may still join."""
        return self.filter(expires_at__gt=timezone.now())


class Invitation(models.Model):
    """With its token a host of this name may join, once. Only the token's hash is kept; using it deletes the row."""

    name = models.CharField(max_length=255, unique=True, help_text="Of the node.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    expires_at = models.DateTimeField()

    objects = InvitationQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.name}, until {self.expires_at}"


class Compute(models.TextChoices):
    """How containers that compute on one GPU share it."""

    SHARED = "shared"  # all at once, as the driver does it
    TURNS = "turns"  # one at a time, by weight


class Gpu(models.Model):
    """One GPU, as last seen. All of it is observed, but what an admin chose for it."""

    compute_asked = models.CharField(
        max_length=6, blank=True, choices=Compute, help_text="What an admin chose; empty: as GPUSHARE_COMPUTE says."
    )
    drained_at = models.DateTimeField(null=True, blank=True, help_text="Since when nothing new is placed on it.")
    drain_reason = models.CharField(
        max_length=500, blank=True, help_text="Why; stays after that, so that what was found then is known already."
    )
    # observed
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    uuid = models.CharField(max_length=64, unique=True)
    index = models.PositiveIntegerField()
    name = models.CharField(max_length=255)
    present = models.BooleanField(default=True)
    simulated = models.BooleanField(default=False)
    total = models.BigIntegerField(help_text="What the card has, or the cap set by configuration.")
    capacity = models.BigIntegerField(help_text="What containers may hold together: total − reserve − foreign.")
    most = models.BigIntegerField(default=0, help_text="What capacity is when no foreign memory is in use.")
    free = models.BigIntegerField(default=0, help_text="Capacity that is neither held nor reserved.")
    idle = models.BigIntegerField(default=0, help_text="Headroom that others get as soon as they ask for it.")
    foreign = models.BigIntegerField(default=0, help_text="In use, but by no session.")
    real = models.BigIntegerField(default=0, help_text="In use, by NVML.")
    context = models.BigIntegerField(default=0, help_text="What one CUDA context takes, measured.")
    utilisation = models.PositiveSmallIntegerField(null=True, blank=True, help_text="Percent.")
    temperature = models.SmallIntegerField(null=True, blank=True, help_text="Degrees Celsius.")
    hot_since = models.DateTimeField(null=True, blank=True, help_text="Since when it is as hot as its limit.")
    power = models.FloatField(null=True, blank=True, help_text="Watts.")
    xid = models.PositiveIntegerField(null=True, blank=True, help_text="The last critical error that it reported.")
    xid_at = models.DateTimeField(null=True, blank=True)
    ecc_errors = models.BigIntegerField(
        null=True, blank=True, help_text="Uncorrected memory errors since the driver was loaded; null: not reported."
    )
    strangers = models.JSONField(
        default=list, help_text="[{pid, bytes, user, command}]: processes on it that are no container's, largest first."
    )
    compute = models.CharField(max_length=6, choices=Compute, default=Compute.SHARED, help_text="What is in force.")
    compute_why = models.CharField(max_length=500, blank=True, help_text="Why that is in force: a sentence.")

    class Meta:
        ordering = ["node_id", "index"]

    @property
    def drained(self) -> bool:
        return self.drained_at is not None

    def __str__(self) -> str:
        return f"{self.index}: {self.name}"

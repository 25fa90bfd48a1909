"""The records: containers, their claims, and commands. What happened is in history.py, nodes and GPUs in hosts.py.

Who writes what. Desired state (a container's settings, `Command` rows) is written by `web/services/` alone, and by
`scheduler/containers/intents.py` where the appliance itself wants something; observed state (every field below a line
"observed") by `scheduler/store/` alone. A container's `state` is never stored: it is a function of stored facts
(states.py), so the two sides cannot disagree about it.

Sizes are bytes. Times are aware UTC datetimes.
"""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from web.models.choices import ExpectedBy, GaveWay, Shortage, Swap
from web.models.hosts import Gpu, Node, ordered
from web.models.states import State, in_state, state_of, waiting_since

USUAL_WEIGHT = 100  # in the turns on a GPU
COLOURS = 10  # as many as a colour-blind reader can tell apart
MARKS = 4 * COLOURS  # each of them plain, and with three patterns


def large(path: str = "") -> list[str]:
    """What may be a megabyte, and never changes, to `defer` where many are read; `path` leads to the containers."""
    return [f"{path}{name}" for name in ("environment", "command")]


def secrets(person: str) -> list[str]:
    """What a scheduler may not read of a person, and has no use for, to `defer`; `person` leads to them."""
    return [f"{person}__{name}" for name in ("password", "email", "last_login")]


# PlacementTicket to who chooses the node, a Swarm, and none has it yet; the name of who chooses stands as its engine.
FOR_A_NODE = Q(engine="swarm", mount="", started_at=None, finished_at=None)


class ContainerQuerySet(models.QuerySet["Container"]):
    def live(self) -> ContainerQuerySet:
        """Those that have not ended."""
        return self.filter(finished_at=None)

    def listed(self) -> ContainerQuerySet:
        """Those that the engine still knows or will know: neither removed nor refused at launch."""
        return self.filter(removed_at=None)

    def in_state(self, state: State) -> ContainerQuerySet:
        """Those whose `state` is this."""
        return self.filter(in_state(state))

    def waiting(self) -> ContainerQuerySet:
        """Those with a call that waits for memory, in the order of the queue."""
        return self.live().exclude(suspended_since=None).order_by(ordered("queue_position"), "suspended_since", "pk")

    def queued(self) -> ContainerQuerySet:
        """Those with a call that waits for memory, in the order of the queue; then those that wait for a node."""
        queued = self.live().filter(~Q(suspended_since=None) | FOR_A_NODE)
        return queued.order_by(ordered("queue_position"), ordered("suspended_since"), "created_at", "pk")

    def idle(self) -> ContainerQuerySet:
        """Those that hold VRAM and have not computed for too long, as the scheduler saw it."""
        return self.live().exclude(idle_since=None)

    def whole(self) -> ContainerQuerySet:
        """With the owner, the node's name, and the claims, each with its GPU.

        The name alone: what else a node's row says changes each second.
        """
        named = self.annotate(named_node=models.F("node__name"))
        return named.select_related("owner").defer(*secrets("owner")).prefetch_related(claims_with_gpus())

    def freest_colour(self) -> int:
        """The mark, a colour or beyond the first ten a colour with a pattern, that the fewest live containers have."""
        taken = Counter(self.live().values_list("colour", flat=True))
        return min(range(MARKS), key=lambda colour: taken[colour])


def claims_with_gpus() -> models.Prefetch[str]:
    return models.Prefetch("claims", Claim.objects.select_related("gpu"))


class Container(models.Model):
    """A container that somebody launched: what was asked for, and what became of it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=63)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="containers")
    image = models.CharField(max_length=255)
    command = models.JSONField(default=list, help_text="A list of words; empty takes the image's own.")
    environment = models.JSONField(default=dict)
    working_dir = models.CharField(max_length=4095, blank=True, help_text="Empty takes the image's own.")
    gpu_memory = models.BigIntegerField(
        null=True, help_text="The quota in force on each GPU; empty before a launch takes the image's label."
    )
    gpu_count = models.PositiveSmallIntegerField(default=1)
    gpu_uuids = models.JSONField(default=list, help_text="GPUs asked for by UUID; empty lets the scheduler choose.")
    priority = models.SmallIntegerField(default=0)
    priority_across = models.BooleanField(
        default=False, help_text="An operator gave the priority: it counts against other people's containers, too."
    )
    on_shortage = models.CharField(max_length=4, choices=Shortage, default=Shortage.WAIT)
    max_wait_seconds = models.FloatField(null=True, blank=True)
    ttl_seconds = models.FloatField(null=True, blank=True)
    guaranteed = models.BooleanField(default=False)
    give_way = models.BooleanField(
        default=True, help_text="Others may have its VRAM while it computes nothing, or after its time."
    )
    movable = models.BooleanField(
        default=False, help_text="Its ranks use NCCL in a way in which their VRAM can be moved."
    )
    compute_weight = models.PositiveSmallIntegerField(
        default=USUAL_WEIGHT, help_text="Its part of the turns: 1 to 1000."
    )
    compute_limit = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Percent of a card's time at most, also while no other container computes."
    )
    remove_when_done = models.BooleanField(default=False)
    restart = models.CharField(
        max_length=16, blank=True, help_text="When a Swarm begins it again (web/spec/restarts.py); empty: never."
    )
    run_of = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="runs",
        help_text="The first run of what a Swarm has begun again; empty: this is it.",
    )  # fmt: skip
    notify = models.JSONField(
        null=True, blank=True, help_text="The notifications that its owner gets; empty: as they wish for all."
    )
    user = models.CharField(max_length=65, blank=True, help_text="Of its programs; empty: as its image says.")
    init = models.BooleanField(default=True, help_text="Its first process reaps orphans, if its command does not.")
    interactive = models.BooleanField(default=False, help_text="Its input is kept open.")
    tty = models.BooleanField(default=False, help_text="It runs in a terminal.")
    memory = models.BigIntegerField(null=True, blank=True, help_text="Host RAM.")
    shm_size = models.BigIntegerField(null=True, blank=True, help_text="Of /dev/shm.")
    cpus = models.FloatField(null=True, blank=True)
    volumes = models.JSONField(default=list)
    ports = models.JSONField(default=list)
    app = models.CharField(max_length=200, blank=True, help_text="What is opened of it: a port, perhaps with a path.")
    volume = models.CharField(
        max_length=255, blank=True, help_text="The Docker volume that brings its quota; empty: it was launched here."
    )
    mount = models.CharField(max_length=255, blank=True, help_text="What Docker calls that volume's mounting.")
    namespace = models.CharField(
        max_length=63, blank=True, help_text="Of a Kubernetes cluster, of whose pods it is; else empty."
    )
    pods = models.JSONField(default=list, help_text="That cluster's pods with its claim, as last seen.")
    handed = models.CharField(
        max_length=64,
        blank=True,
        editable=False,
        help_text="What a host shows to which a placer has given it. Of a launch that was handed to one.",
    )
    planned = models.ForeignKey(
        "Planned", null=True, blank=True, on_delete=models.SET_NULL, related_name="runs",
        help_text="The planned launch of which this is an attempt of a run.",
    )  # fmt: skip
    planned_run = models.PositiveIntegerField(null=True, blank=True, help_text="From 1.")
    planned_attempt = models.PositiveSmallIntegerField(null=True, blank=True, help_text="From 1.")
    launch_key = models.CharField(max_length=128, null=True, blank=True, help_text="The caller's Idempotency-Key.")
    launch_digest = models.CharField(
        max_length=64, blank=True, help_text="SHA-256 of what was asked for under the key."
    )
    colour = models.PositiveSmallIntegerField(null=True, editable=False, help_text="On every screen; 0 to 39.")
    created_at = models.DateTimeField(auto_now_add=True)
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="containers")
    node_asked = models.CharField(max_length=255, blank=True, help_text="The name of the one asked for; empty: any.")
    constraints = models.JSONField(default=list, help_text="What the node has to be like (web/spec/constraints.py).")
    node_reason = models.CharField(max_length=500, blank=True, help_text="Why it is there; empty: there was no choice.")
    # observed
    engine = models.CharField(max_length=16, blank=True)
    engine_id = models.CharField(max_length=128, blank=True, db_index=True)
    started_at = models.DateTimeField(null=True, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    swap = models.CharField(max_length=8, blank=True, choices=Swap, help_text="How far its swapping is.")
    swapped_at = models.DateTimeField(null=True, blank=True, help_text="Since when its VRAM is in host memory.")
    swapped = models.BigIntegerField(default=0, help_text="What of its VRAM is in host memory.")
    gave_way = models.CharField(
        max_length=6, blank=True, choices=GaveWay, help_text="Why it is swapped out, if no person has done that."
    )
    gave_way_to = models.CharField(max_length=63, blank=True, help_text="The name of whom it gave way to.")
    card_move = models.JSONField(
        default=dict, blank=True, help_text="{from, to}, UUIDs: its VRAM comes back on another GPU; else empty."
    )
    cannot_move = models.CharField(
        max_length=500,
        blank=True,
        help_text="Why its VRAM cannot be moved to host memory; empty: nothing is known against it.",
    )
    not_restored = models.CharField(
        max_length=500,
        blank=True,
        help_text="Why its VRAM could not be brought back from host memory; empty: that has not failed.",
    )
    no_turns = models.CharField(
        max_length=500, blank=True, help_text="Why it takes no part in the turns; empty if it does."
    )
    suspended_since = models.DateTimeField(null=True, blank=True)
    clock_ahead = models.FloatField(
        default=0.0, help_text="Seconds by which its clock is ahead of its host's: that was set since."
    )
    suspended_seconds = models.FloatField(default=0.0, help_text="Ended waits only.")
    kill_requested_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True, help_text="Why it ended, or did not start.")
    removed_at = models.DateTimeField(null=True, blank=True, help_text="Forgotten by the engine, or never started.")
    idle_since = models.DateTimeField(
        null=True, blank=True, help_text="It holds VRAM and its GPUs do nothing for it; set once that lasts too long."
    )
    cpus_used = models.FloatField(null=True, blank=True, help_text="Processors that it keeps busy; null: not known.")
    memory_used = models.BigIntegerField(null=True, blank=True, help_text="Host RAM, without what the kernel may drop.")
    queue_position = models.PositiveIntegerField(null=True, blank=True)
    queue_bytes = models.BigIntegerField(default=0, help_text="What its waiting calls ask for, together.")
    queue_reason = models.CharField(max_length=500, blank=True, help_text="Why it waits, with the numbers.")
    expected_at = models.DateTimeField(null=True, blank=True, help_text="When it is expected to go on.")
    expected_by = models.CharField(
        max_length=12, blank=True, choices=ExpectedBy, help_text="Basis of the estimate; empty: no estimate."
    )

    objects = ContainerQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            # A name is taken while its container lives; the history may hold it many times.
            models.UniqueConstraint(fields=["name"], condition=Q(finished_at=None), name="one_live_container_a_name"),
            models.UniqueConstraint(fields=["owner", "launch_key"], name="one_container_a_launch_key"),
            models.UniqueConstraint(
                fields=["planned", "planned_run", "planned_attempt"], name="one_container_an_attempt"
            ),
            # Docker repeats a call that it had no answer to.
            models.UniqueConstraint(
                fields=["node", "mount"],
                condition=Q(finished_at=None) & ~Q(mount=""),
                name="one_live_container_a_mount",
            ),
        ]
        indexes = [models.Index(fields=["finished_at", "created_at"])]

    def __str__(self) -> str:
        return self.name

    def log_fields(self) -> dict[str, str]:
        """Whatever is known of it without a query."""
        owner = self._state.fields_cache.get("owner")
        return {"container": self.name, "container_id": str(self.pk), "owner": owner.username if owner else ""}

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self._state.adding and self.colour is None:
            self.colour = Container.objects.freest_colour()
        super().save(*args, **kwargs)

    @property
    def state(self) -> State:
        return state_of(self)

    @property
    def waits_for(self) -> str:
        """Of one in the queue: "memory" of a card, or a "node" with room for it."""
        return "memory" if self.suspended_since else "node"

    @property
    def queued_since(self) -> datetime:
        return self.suspended_since or self.created_at

    @property
    def node_name(self) -> str:
        """Empty if it is on none yet. Read with `whole`, or asked for."""
        if "named_node" in self.__dict__:
            return self.__dict__["named_node"] or ""
        return self.node.name if self.node else ""

    @property
    def waiting_since(self) -> datetime | None:
        return waiting_since(self)

    @property
    def ends_by(self) -> datetime | None:
        """When its time limit ends it; None: it has none, or has not started."""
        if self.ttl_seconds is None or self.started_at is None:
            return None
        return self.started_at + timedelta(seconds=self.ttl_seconds)

    @property
    def is_of_pods(self) -> bool:
        """Whether its quota comes by a claim in a Kubernetes cluster, NAMESPACE/NAME; of units that are counted, /NAME.

        No volume of Docker's has a slash in its name.
        """
        return "/" in self.volume


class Claim(models.Model):
    """A container's hold on one GPU. `quota` is what was promised; the rest is observed."""

    container = models.ForeignKey(Container, on_delete=models.CASCADE, related_name="claims")
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="claims")
    quota = models.BigIntegerField()
    granted = models.BigIntegerField(default=0)
    used = models.BigIntegerField(default=0)
    peak = models.BigIntegerField(default=0)
    overhead = models.BigIntegerField(default=0)
    unexplained = models.BigIntegerField(default=0, help_text="Held past the shim; a part of the GPU's foreign.")
    waiting = models.BigIntegerField(default=0, help_text="What calls ask for that wait for memory of this GPU.")
    had = models.FloatField(null=True, help_text="Seconds that it computed, over its life; null: not known.")
    due = models.FloatField(null=True, help_text="Seconds of turns that its weight and limit gave it; null: no turns.")
    held_back = models.FloatField(null=True, help_text="Seconds that it waited for its turn; null: no turns.")
    had_lately = models.FloatField(null=True, help_text="The same of the last minute.")
    due_lately = models.FloatField(null=True)
    held_back_lately = models.FloatField(null=True)
    utilisation = models.PositiveSmallIntegerField(null=True, help_text="Percent of the card's time that it computes.")
    processes = models.JSONField(
        default=list, help_text="[{pid, used, real, uncapped, ranks?: [number], of?: ranks in all}] as last sampled."
    )

    class Meta:
        ordering = ["gpu__index"]
        constraints = [models.UniqueConstraint(fields=["container", "gpu"], name="one_claim_a_gpu")]


class Command(models.Model):
    """Something a person wants done. Taken by the scheduler once; `outcome` says what really happened.

    `arguments` by kind: launch {"gpus"?: [uuids], as the planner chose}; pause {"free_memory"?: bool}; resume {}; kill
    {"grace": seconds}; remove {}; change {"gpu_memory"?: bytes, "priority"?: int, "compute_weight"?: int,
    "compute_limit"?: percent or null, "across"?: bool}; policy {"policy": name}; reorder {"containers": [ids]}; compute
    {"gpu": uuid, "compute": Compute}; forecast {"gpu_memory": bytes, "gpus": [uuids] or count, "owner": name,
    "ttl_seconds": seconds or null, "reason": why there}, answered in `result`.
    """

    class Kind(models.TextChoices):
        LAUNCH = "launch"
        PAUSE = "pause"
        RESUME = "resume"
        KILL = "kill"
        REMOVE = "remove"
        CHANGE = "change"
        POLICY = "policy"
        REORDER = "reorder"
        COMPUTE = "compute"
        DRAIN = "drain-gpu"
        UNDRAIN = "undrain-gpu"
        MOVE = "move"
        FORECAST = "forecast"

    class Outcome(models.TextChoices):
        DONE = "done"
        REFUSED = "refused"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=Kind)
    container = models.ForeignKey(Container, null=True, blank=True, on_delete=models.CASCADE, related_name="commands")
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.SET_NULL, help_text="Whose it is to do; empty: the only one's."
    )
    issued_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    arguments = models.JSONField(default=dict)
    note = models.CharField(max_length=500, blank=True, help_text="The reason a person gave.")
    number = models.BigIntegerField(
        default=0, db_index=True, editable=False, help_text="Their order: a clock may be set back."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    # observed
    taken_at = models.DateTimeField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=8, choices=Outcome, blank=True)
    code = models.CharField(max_length=64, blank=True, help_text="Error code of a refusal, by the REST contract.")
    status = models.PositiveSmallIntegerField(null=True, blank=True, help_text="HTTP status of a refusal.")
    field = models.CharField(max_length=64, blank=True, help_text="The field at fault, if one is.")
    message = models.CharField(max_length=1000, blank=True)
    result = models.JSONField(null=True, blank=True, help_text="What a question (forecast) was answered with.")

    class Meta:
        ordering = ["number", "created_at"]
        indexes = [models.Index(fields=["done_at", "number"])]

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Comes after all that are there."""
        if self._state.adding and not self.number:
            self.number = (Command.objects.aggregate(last=models.Max("number"))["last"] or 0) + 1
        super().save(*args, **kwargs)

    @property
    def text(self) -> str:
        """What to tell people about it; a launch that takes its time tells how far the fetching of its image is."""
        waits = "The scheduler has not answered yet. It will do this as soon as it can."
        return self.message or (waits if self.done_at is None else "Done.")

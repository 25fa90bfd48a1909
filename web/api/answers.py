"""What records look like from outside (docs/rest.md). All of it is read-only."""

from functools import cached_property
from typing import Any

from rest_framework import serializers

from web.api.protocol.answer import Answer
from web.models import Claim, Command, Container, Gpu, Node, State
from web.people.roles import Rights, outdated, rights_of
from web.services.sharing import not_kept, ranks
from web.spec.requests import COLUMNS


class ClaimAnswer(Answer[Claim]):
    """A container's part of one GPU, all in bytes.

    `quota` is the most that it may hold, `used` what it holds, `peak` the most so far, `overhead` what of it CUDA
    contexts take, `granted` what its processes may hold without asking, `unexplained` what the card shows beyond
    `used`, `waiting` what calls ask for that wait for memory of this GPU. Of computing, in seconds over its life and,
    `…_lately`, of the last minute: what it `had`, what was `due` to it, and how long it was `held_back` because others
    had their turn. null: not known, or the GPU is shared without turns. `utilisation`: per cent of the GPU's
    time that it computes now.
    """

    uuid = serializers.CharField(source="gpu.uuid")

    class Meta:
        model = Claim
        fields = [
            "uuid", "quota", "granted", "used", "peak", "overhead", "unexplained", "waiting", "had", "due", "held_back",
            "had_lately", "due_lately", "held_back_lately", "utilisation",
        ]  # fmt: skip


class ContainerAnswer(Answer[Container]):
    """A container. Sizes are bytes, durations seconds, times UTC; null where nothing is set or has happened yet."""

    owner = serializers.CharField(source="owner.username")
    node = serializers.SerializerMethodField(help_text="The host where it is, or is to be; null: not known.")
    state = serializers.ChoiceField(choices=State.choices)
    gpus = ClaimAnswer(source="claims", many=True)
    run_of = serializers.UUIDField(
        source="run_of_id",
        allow_null=True,
        help_text="The first run of a launch that a Swarm restarted; null: this one.",
    )
    gave_way = serializers.CharField(
        help_text='Why its VRAM was moved to host memory for others, "idle", "share", "rotate" or "booked"; else empty.'
    )
    share_not_kept = serializers.SerializerMethodField(
        help_text="Why its compute weight or limit is not kept; empty: it is, or none was asked for."
    )
    ranks = serializers.SerializerMethodField(
        help_text="Its ranks of NCCL, by their largest communicator: rank, of how many, pid on the host, GPU."
    )
    command = serializers.SerializerMethodField(help_text="null for readers who may not steer it.")
    env = serializers.SerializerMethodField(
        help_text="The names only: values may be secrets. null for readers who may not steer it."
    )

    class Meta:
        model = Container
        fields = [
            "id", "name", "owner", "node", "node_reason", "state", "engine", "engine_id", "namespace", "pods", *COLUMNS,
            "env", "gpus", "gpu_count", "run_of",
            "swapped", "gave_way", "gave_way_to", "cannot_move", "not_restored", "no_turns",
            "share_not_kept", "ranks", "suspended_since", "suspended_seconds", "queue_position",
            "queue_reason", "idle_since", "cpus_used", "memory_used",
            "created_at", "started_at", "finished_at", "exit_code", "reason",
        ]  # fmt: skip

    def _shows(self, container: Container) -> bool:
        """`shows` in the context says whose command and environment the reader may see. Without it, everybody's."""
        shows = self.context.get("shows")
        return shows is None or bool(shows(container))

    def get_node(self, container: Container) -> str | None:
        return container.node_name or None

    def get_share_not_kept(self, container: Container) -> str:
        return not_kept(container)

    def get_ranks(self, container: Container) -> list[dict[str, Any]]:
        return ranks((claim.gpu.uuid, claim.processes) for claim in container.claims.all())

    def get_command(self, container: Container) -> list[str] | None:
        return container.command if self._shows(container) else None

    def get_env(self, container: Container) -> list[str] | None:
        return sorted(container.environment) if self._shows(container) else None


class SteeredAnswer(ContainerAnswer):
    """A container after something was done to it, and what really happened."""

    message = serializers.CharField(allow_blank=True)

    class Meta(ContainerAnswer.Meta):
        fields = [*ContainerAnswer.Meta.fields, "message"]


class PendingAnswer(serializers.Serializer[Any]):
    """A command that the scheduler has not finished yet."""

    command = serializers.UUIDField()
    url = serializers.CharField()
    message = serializers.CharField()


class ErrorDetail(serializers.Serializer[Any]):
    """`code` is for programs and stays as it is, `message` is for people, `field` names what was wrong."""

    code = serializers.CharField()
    message = serializers.CharField()
    field = serializers.CharField(required=False)


class ErrorAnswer(serializers.Serializer[Any]):
    error = ErrorDetail()


class CommandAnswer(Answer[Command]):
    """What somebody asked the scheduler to do, and its outcome: empty, `done` or `refused`; then `code` and `status` as
    an error would have them."""

    issued_by = serializers.CharField(source="issued_by.username", default=None, allow_null=True)
    done = serializers.SerializerMethodField()

    class Meta:
        model = Command
        fields = [
            "id", "kind", "container", "issued_by", "arguments", "note", "created_at", "done", "done_at", "outcome",
            "code", "status", "field", "message",
        ]  # fmt: skip

    def get_done(self, command: Command) -> bool:
        return command.done_at is not None


class GpuAnswer(Answer[Gpu]):
    """A GPU, sizes in bytes. `charged`: what containers hold by our account; `granted`: with the headroom of their
    leases; `real`: what the card shows in use; `foreign`: the part of it that no container accounts for. `compute`: how
    containers that compute share it, `compute_why` the reason, `compute_asked` what an admin chose, if one did.
    `drained_at`: since when nothing new is placed on it; `drain_reason`: why it was last taken out of service."""

    node = serializers.CharField(source="node.name")
    charged = serializers.IntegerField()
    granted = serializers.IntegerField()
    compute_asked = serializers.CharField(
        help_text="`turns`, `shared`, or empty: as the setting GPUSHARE_COMPUTE says."
    )
    promised = serializers.IntegerField(help_text="The sum of the quotas of live containers.")

    class Meta:
        model = Gpu
        fields = [
            "uuid", "index", "name", "node", "present", "simulated", "total", "capacity", "most", "free", "idle",
            "charged", "granted", "promised", "real", "foreign", "context", "utilisation", "temperature", "power",
            "compute", "compute_asked", "compute_why", "drained_at", "drain_reason",
        ]  # fmt: skip


class NodeAnswer(Answer[Node]):
    """A host. `engine_error` says why the engine cannot be used just now; empty if it can.

    `outdated` tells admins, and nobody else, what of the engine is older than it should be and why: sentences.
    `cannot_turn` says why containers cannot take turns on its GPUs; empty if they can.
    `late` is the longest that the scheduler's decisions were held up in the second before `seen_at`, in seconds.
    `drained_at`: since when it takes no new launches. `release`: of its scheduler. `gpus` counts its cards, `capacity`
    is what containers may hold there together, `promised` the sum of their quotas, in bytes.
    """

    alive = serializers.SerializerMethodField(help_text="The scheduler gave a sign of life in the last 5 seconds.")
    outdated = serializers.SerializerMethodField(help_text="Empty unless an admin asks.")
    gpus = serializers.IntegerField(source="gpus_there")
    capacity = serializers.IntegerField()
    promised = serializers.IntegerField()

    class Meta:
        model = Node
        fields = [
            "name",
            "labels",
            "drained_at",
            "release",
            "gpus",
            "capacity",
            "promised",
            "engine",
            "engine_error",
            "outdated",
            "policy",
            "driver",
            "simulated",
            "cannot_turn",
            "started_at",
            "seen_at",
            "alive",
            "late",
        ]

    def get_alive(self, node: Node) -> bool:
        return node.is_alive()

    def get_outdated(self, node: Node) -> list[str]:
        return outdated(node, self._rights)

    @cached_property
    def _rights(self) -> Rights:
        """Of who asks, looked up once for all nodes."""
        return rights_of(self.context["request"].user)


class WaitingGpuAnswer(serializers.Serializer[Any]):
    uuid = serializers.CharField(source="gpu.uuid")
    quota = serializers.IntegerField()
    used = serializers.IntegerField()


class WaitingAnswer(Answer[Container]):
    """One that waits, suspended or for a node: its place, for how much, since when, and why."""

    owner = serializers.CharField(source="owner.username")
    node = serializers.CharField(source="node_name", help_text="Each node serves those who wait there, in its order.")
    position = serializers.IntegerField(source="queue_position", allow_null=True)
    since = serializers.DateTimeField(source="queued_since")
    waits_for = serializers.ChoiceField(choices=["memory", "node"])
    reason = serializers.CharField(source="queue_reason")
    bytes = serializers.IntegerField(source="queue_bytes", help_text="Bytes that its waiting calls ask for.")
    gpus = WaitingGpuAnswer(source="claims", many=True)

    class Meta:
        model = Container
        fields = [
            "id", "name", "owner", "node", "waits_for", "position", "bytes", "since", "reason", "expected_at",
            "expected_by",
            "priority", "gpus",
        ]  # fmt: skip

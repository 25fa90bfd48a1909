"""What a launch, a change and the other requests may say. Whether the card, the queue and the person's allowance can
bear it is decided in web/services/; here is what makes sense at all."""

import re
from typing import Any

from django.core.validators import RegexValidator
from rest_framework import serializers

from web.models import Compute, Container, Happening, Shortage
from web.models.people import HEAVIEST
from web.spec import constraints, quotas, restarts, several_hosts
from web.spec.fields import (
    NOTHING,
    EnvironmentField,
    GpusField,
    HappeningsField,
    ItemsField,
    SizeField,
    StrictBoolean,
    StrictInteger,
    StrictNumber,
    StrictSerializer,
    StrictText,
    WordsField,
)
from web.spec.inside.mounts import check_folder, check_port, check_volume

PRIORITY_LOWEST, PRIORITY_HIGHEST = -100, 100
LONGEST_SECONDS = 366 * 24 * 3600.0
SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")
_IMAGE = r"\A[a-zA-Z0-9][a-zA-Z0-9._/:@-]*\Z"
_USER = re.compile(r"([0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]{0,31})(:([0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]{0,31}))?")
_NUMBER = re.compile(r"(?<![^:])[0-9]+(?![^:])")  # not within a name
LARGEST_USER = 2**31 - 1  # runc takes no larger one
_APP = r"\A[0-9]{1,5}(/[A-Za-z0-9._~-]+)*/?\Z"
HIGHEST_PORT = 65535
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
_MIB = 2**20
_OR_NULL: dict[str, Any] = {"required": False, "allow_null": True, "default": None}


class LaunchSpec(StrictSerializer):
    """A launch. `image` is all that has to be given.

    This is the list of the fields: what is recorded of a launch (`COLUMNS`), what REST, the form and the container's
    page say of it, and the commands to copy follow from it.
    """

    image = StrictText(
        max_length=255,
        validators=[RegexValidator(_IMAGE, "This is not the name of an image.")],
        label="Image",
        help_text="For example pytorch/pytorch:2.4; with the process engine: local",
    )
    command = WordsField(default=list, label="Command", help_text="Empty: the image's command")
    gpu_memory = SizeField(
        smallest=quotas.LEAST,
        label="Quota on each GPU",
        help_text="For example 2GiB; empty: the image's label, else 1 GiB",
        **_OR_NULL,
    )
    gpus = GpusField(default=1, label="GPUs", help_text="How many, or which ones by UUID")
    node = StrictText(
        allow_blank=True, default="", max_length=255, label="Node", help_text="Of several hosts; empty: one is chosen"
    )
    constraints = ItemsField(
        constraints.check,
        default=list,
        label="Constraints on the node",
        help_text="node.labels.disk==ssd or node!=gpu3",
    )
    name = StrictText(
        allow_blank=True, default="", max_length=63, label="Name", help_text="Leave empty for a random name"
    )
    env = EnvironmentField(default=dict, label="Environment", help_text="NAME=value")
    working_dir = StrictText(
        allow_blank=True,
        default="",
        max_length=4095,  # PATH_MAX, less its NUL
        label="Working directory",
        help_text="For example /work; empty: the image's own",
    )
    user = StrictText(
        allow_blank=True,
        default="",
        max_length=65,
        label="User",
        help_text="For example 1000, 1000:1000, or a name that the image knows; empty: the image's own",
    )
    init = StrictBoolean(
        default=True,
        label="No init: the command itself is process 1",
        help_text="true: a small init is the first process. false: the command itself is",
    )
    on_shortage = serializers.ChoiceField(Shortage.choices, default=Shortage.WAIT)
    volumes = ItemsField(check_volume, default=list, label="Volumes", help_text="name:/data or /srv/data:/data:ro")
    ports = ItemsField(check_port, default=list, label="Ports", help_text="20080:80 or 20053:53/udp")
    app = StrictText(
        allow_blank=True,
        default="",
        max_length=200,
        validators=[RegexValidator(_APP, "This is not a port, perhaps with a path, such as 8888/lab.")],
        label="Application",
        help_text="Port and page that gpushare open leads to, such as 8888/lab",
    )
    ttl_seconds = StrictNumber(
        min_value=1, max_value=LONGEST_SECONDS, label="End it after (seconds)", help_text="Empty: never", **_OR_NULL
    )
    max_wait_seconds = StrictNumber(
        min_value=0.001,
        max_value=LONGEST_SECONDS,
        label="Longest single wait (seconds)",
        help_text="Empty: no limit",
        **_OR_NULL,
    )
    memory = SizeField(smallest=6 * _MIB, label="Host RAM", help_text="For example 8GiB", **_OR_NULL)
    shm_size = SizeField(
        smallest=_MIB,
        label="Shared memory",
        help_text="For example 8GiB; a part of the host RAM; empty: 1 GiB",
        **_OR_NULL,
    )
    cpus = StrictNumber(min_value=0.01, max_value=4096, label="CPU cores", help_text="For example 2", **_OR_NULL)
    priority = StrictInteger(
        default=0,
        min_value=PRIORITY_LOWEST,
        max_value=PRIORITY_HIGHEST,
        label="Priority",
        help_text="Higher goes first; 0 is usual",
    )
    compute_weight = StrictInteger(
        min_value=1,
        max_value=HEAVIEST,
        label="Compute weight",
        help_text="Share of GPU time among its owner's containers; empty: 100",
        **_OR_NULL,
    )
    compute_limit = StrictInteger(
        min_value=1,
        max_value=100,
        label="GPU time limit (%)",
        help_text="Applies even if the GPU is otherwise idle; empty: no limit",
        **_OR_NULL,
    )
    notify = HappeningsField(
        label="Notify me when",
        help_text=f"Of {', '.join(Happening)}; {NOTHING}: nothing; empty: as your notifications say",
        **_OR_NULL,
    )
    guaranteed = StrictBoolean(default=False, label="Guaranteed: reserve the whole quota from the start")
    give_way = StrictBoolean(default=True, label="Never move to host memory, even while idle")
    movable = StrictBoolean(
        default=False, label="Ranks of NCCL on several GPUs can be moved to host memory, a little slower"
    )
    remove_when_done = StrictBoolean(default=False, label="Remove when it ends")
    restart = StrictText(
        allow_blank=True,
        default="",
        max_length=16,
        label="Restart policy",
        help_text="on-failure, on-failure:3 or always; by a Swarm only; empty: never",
    )
    interactive = StrictBoolean(default=False, label="Keep input open (gpushare attach)")
    tty = StrictBoolean(default=False, label="Terminal (gpushare attach)")

    def validate_name(self, value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise serializers.ValidationError(
                "A name has letters, digits, dots, dashes and underscores, and begins with a letter or a digit."
            )
        return value

    def validate_app(self, value: str) -> str:
        if value and not 0 < int(value.partition("/")[0]) <= HIGHEST_PORT:
            raise serializers.ValidationError(f"A port is 1 to {HIGHEST_PORT}.")
        return value

    def validate_restart(self, value: str) -> str:
        return restarts.check(value) if value else ""

    def validate_working_dir(self, value: str) -> str:
        return check_folder(value) if value else ""

    def validate_user(self, value: str) -> str:
        if value and not (_USER.fullmatch(value) and all(int(id_) <= LARGEST_USER for id_ in _NUMBER.findall(value))):
            raise serializers.ValidationError(
                f'A user is a number up to {LARGEST_USER}, such as 1000, or a name in the image, with ":" and a group '
                "behind it if the group is another."
            )
        return value

    def validate_volumes(self, value: list[str]) -> list[str]:
        return _each_once(value, [volume.split(":")[1] for volume in value], "mounted at")

    def validate_ports(self, value: list[str]) -> list[str]:
        published = [f"{port.split(':')[0]}/{port.split('/')[1]}" for port in value]
        return _each_once(value, published, "published at")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["compute_limit"] is not None and (said := several_hosts.named(attrs["command"], attrs["env"])):
            message = f"A GPU time limit cannot be kept of ranks on several hosts ({said}): they are never stopped."
            raise serializers.ValidationError({"compute_limit": [message]})
        return attrs


def _each_once(value: list[str], places: list[str], verb: str) -> list[str]:
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise serializers.ValidationError(f"Something is {verb} {twice} twice.")
    return value


FIELDS: dict[str, Any] = dict(LaunchSpec().fields.items())
PRIVATE = ("command", "env")  # they may hold secrets: for who may steer the container
# Kept as they are, in columns of the same name. The others: a name may be made up, GPUs and a node may be chosen.
COLUMNS = tuple(name for name in FIELDS if name not in ("name", "env", "gpus", "node"))


def asked_for(container: Container, private: bool) -> dict[str, Any]:
    """The launch that would make this container again, by field. Not its name: that belongs to one that lives."""
    asked = {name: getattr(container, name) for name in COLUMNS}
    asked |= {
        "env": container.environment,
        "gpus": container.gpu_uuids or container.gpu_count,
        "node": container.node_asked,
    }
    return {name: asked[name] for name in FIELDS if name in asked and (private or name not in PRIVATE)}


class ChangeSpec(StrictSerializer):
    gpu_memory = SizeField(smallest=quotas.LEAST, required=False)
    priority = StrictInteger(required=False, min_value=PRIORITY_LOWEST, max_value=PRIORITY_HIGHEST)
    compute_weight = StrictInteger(required=False, min_value=1, max_value=HEAVIEST)
    compute_limit = StrictInteger(
        required=False, allow_null=True, min_value=1, max_value=100, help_text="null: no limit any more."
    )


class ComputeSpec(StrictSerializer):
    compute = serializers.ChoiceField(Compute.choices)


class NoteSpec(StrictSerializer):
    note = StrictText(allow_blank=True, default="", max_length=500)


class PauseSpec(NoteSpec):
    free_memory = StrictBoolean(default=False)


class KillSpec(NoteSpec):
    grace = StrictNumber(default=0.0, min_value=0, max_value=3600)


class MoveSpec(NoteSpec):
    gpu = StrictText(max_length=64)
    leaves = StrictText(allow_blank=True, default="", max_length=64)


class ExecSpec(StrictSerializer):
    """One more program in a container. Without a command it is the best shell that is there."""

    command = WordsField(default=list)
    interactive = StrictBoolean(default=False)
    tty = StrictBoolean(default=False)
    rows = StrictInteger(default=24, min_value=1, max_value=10_000)
    columns = StrictInteger(default=80, min_value=1, max_value=10_000)

    def validate_command(self, value: list[str]) -> list[str]:
        if value and not value[0]:
            raise serializers.ValidationError("The program has no name.")
        return value or list(SHELL)


class PolicySpec(StrictSerializer):
    policy = StrictText(max_length=32)


class OrderSpec(StrictSerializer):
    containers = serializers.ListField(child=serializers.UUIDField(), max_length=10_000)

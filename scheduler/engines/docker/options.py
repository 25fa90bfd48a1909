"""From a launch to what Docker is asked to create. Typed fields in, options out; nothing is ever passed through.

What is forced on every container: no capabilities, no new privileges, Docker's default seccomp profile (by leaving it
alone), limits of memory, CPU and processes, labels that say it is ours, the shim. Everything that decides which GPUs
a program sees is set here, over whatever a user or an image says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from scheduler.engines.asked import Asked
from scheduler.engines.base import EngineError, Launch
from scheduler.engines.docker.gpu_access import Additions, Mount
from scheduler.engines.docker.images import Image
from scheduler.engines.runtime_environment import environment
from web.errors import Problem
from web.sizes import format_size
from web.spec.inside.mounts import Volume, parse_port, parse_volume
from web.spec.inside.reserved import PRELOAD, SHIM, SOCKETS, undone_by
from web.spec.quotas import require_host_memory

LABEL = "com.gpushare.container"
LABEL_OWNER = "com.gpushare.owner"
LABEL_SHARED = "com.gpushare.shared"  # on a volume that everybody may mount
LABEL_NAME = "com.gpushare.name"
LABEL_LOG = "com.gpushare.log"
LABEL_TTY = "com.gpushare.tty"
LABEL_MEMORY = "com.gpushare.memory"  # the limit of host memory it was launched with; empty: none
LABEL_HOME = "com.gpushare.home"  # tells the containers of several schedulers on one Docker engine apart

# What all containers may take together: nearly the whole host, but not what keeps the host alive.
SHARE_OF_MEMORY = 0.9
# Programs that have to be the first process, or do what Docker's init does. `init` is s6-overlay's, and most systems'.
INITS = {
    "init",
    "systemd",
    "tini",
    "tini-static",
    "docker-init",
    "dumb-init",
    "catatonit",
    "s6-svscan",
    "my_init",
    "runit",
}
SHARED_MEMORY = 1 << 30  # bytes; Docker's own 64 MiB end data loaders, and it counts as the container's memory anyway


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    """What a container gets that asks for nothing. None where the host has no such controller.

    `memory` is also the most that one may ask for, and `host_memory` what all of them may take together; bytes.
    """

    memory: int | None
    cpus: float | None
    pids: int | None
    swap: bool  # whether memory and swap can be limited together
    host_memory: int | None = None

    def on(self, memory: int | None, cpus: float | None) -> "DefaultLimits":
        """These, as settings name them, filled in for a host of so much `memory` (bytes) and so many `cpus`.

        None: it has no control group for that.
        """
        total = None if memory is None else min(self.host_memory or int(memory * SHARE_OF_MEMORY), memory)
        return replace(
            self,
            memory=total and min(self.memory or total, total),
            cpus=cpus,
            host_memory=total,
        )


@dataclass(frozen=True, slots=True)
class Given:
    """What is the same for every container."""

    home: Path
    shim: Path
    preload: Path  # a file that names SHIM, and after it what the image preloads
    log_bytes: int
    parent: str | None = None  # the control group above all of ours; None: Docker's own
    init: bool = True  # Docker has its init (docker-init)
    loaders: bool = True  # images and people may say what the loader searches and preloads (see SECURITY.md)


def create_body(
    launch: Launch,
    *,
    given: Given,
    limits: DefaultLimits,
    additions: Additions,
    image: Image,
    places: Mapping[str, str],
) -> dict[str, Any]:
    """The body of POST /containers/create. `places`: where Docker finds each folder of the host. Raises EngineError."""
    bindings = _port_bindings(launch.ports)
    limited = resources(launch, limits)
    return {
        "Image": launch.image,
        "Cmd": list(launch.command) or None,
        "Env": _environment(launch, additions, image.environment, loaders=given.loaders),
        "WorkingDir": launch.working_dir,
        "User": launch.user,
        "Labels": {
            LABEL: launch.id,
            LABEL_OWNER: launch.owner,
            LABEL_NAME: launch.name,
            LABEL_LOG: str(launch.log_path),
            LABEL_HOME: str(given.home),
            LABEL_MEMORY: str(limited["Memory"] or ""),
            LABEL_TTY: "yes" if launch.tty else "no",  # always said, or an image could say it
        },
        "StopSignal": image.stop_signal,  # with one that does not exist, Docker would send it none at all
        "Healthcheck": {"Test": ["NONE"]},  # an image's own would run in it again and again, unasked
        "Tty": launch.tty,
        "OpenStdin": launch.interactive,
        # The input ends when our own connection ends it. A terminal has no such end, and must outlive the scheduler.
        "StdinOnce": launch.interactive and not launch.tty,
        "AttachStdin": launch.interactive,
        "ExposedPorts": {port: {} for port in bindings},
        "HostConfig": {
            **limited,
            "Init": with_init(launch, image) and given.init,
            "CgroupParent": given.parent or "",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Privileged": False,
            "Mounts": [_mount(mount) for mount in _mounts(launch, given, additions, places)],
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"} for path in additions.devices
            ],
            "DeviceCgroupRules": list(additions.rules),
            "DeviceRequests": list(additions.requests),
            "PortBindings": bindings,
            "ShmSize": shared_memory(launch.shm_size, launch.memory or limits.memory),
            "RestartPolicy": {"Name": "no"},
            "LogConfig": _log_config(given.log_bytes),
        },
    }


def with_init(launch: Launch, image: Image) -> bool:
    """Whether Docker's init is to be the first process: unless the image has one of its own, which has to be that."""
    return launch.init and PurePosixPath(next(iter(image.runs(launch.command)), "")).name not in INITS


def volumes(launch: Launch) -> list[Volume]:
    """Raises EngineError."""
    try:
        return list(map(parse_volume, launch.volumes))
    except Problem as problem:
        raise EngineError(problem.message, code="bad_volume", status=400, field="volumes") from None


def container_name(launch: Launch) -> str:
    """Ended containers keep their names in Docker until they are removed; ours are only taken while one lives."""
    return f"{launch.name}-{launch.id[:8]}"


def _environment(launch: Launch, additions: Additions, of_image: Iterable[str], *, loaders: bool) -> list[str]:
    baked = dict(entry.partition("=")[::2] for entry in of_image)
    if not loaders and "LD_LIBRARY_PATH" in launch.environment:
        raise EngineError(
            "LD_LIBRARY_PATH cannot be set: the NVIDIA Container Toolkit of this host is older than 1.17.8, or "
            "nvidia-ctk does not say its version there. An older one loads libraries from there as root. An admin "
            "has to update it.",
            code="not_supported", status=409, field="env.LD_LIBRARY_PATH",
        )  # fmt: skip
    ours = environment(
        launch.environment,
        gpus=launch.gpus,
        shim=SHIM,
        libraries=additions.libraries,
        state=additions.state,
        alone=additions.alone,
        of_image=baked if loaders else {},
    )
    # A name without a value takes the image's variable away.
    away = [name for name in baked if undone_by(name) or (not loaders and name.startswith("LD_"))]
    return [*(f"{name}={value}" for name, value in ours.items()), *sorted({*away} - ours.keys())]


def resources(launch: Asked, limits: DefaultLimits) -> dict[str, Any]:
    """As Docker calls them. Raises EngineError for more than the limits."""
    try:
        require_host_memory(launch.memory, limits.memory)
    except Problem as problem:
        raise EngineError(problem.message, code=problem.code, status=400, field=problem.field) from None
    memory = None if limits.memory is None else launch.memory or limits.memory
    cpus = None if limits.cpus is None else launch.cpus or limits.cpus
    return {
        "Memory": memory,
        "MemorySwap": memory if limits.swap else None,
        "NanoCpus": None if cpus is None else int(cpus * 1e9),
        "PidsLimit": limits.pids,
    }


def shared_memory(asked: int | None, memory: int | None) -> int:
    """Bytes. It is made of the container's own `memory`: more than that would be promised and never be there."""
    if asked and memory and asked > memory:
        raise EngineError(
            f"{format_size(asked)} is more than all of its host memory, which is {format_size(memory)}.",
            code="shm_too_large",
            status=400,
            field="shm_size",
        )
    return asked or SHARED_MEMORY


def _log_config(kept: int) -> dict[str, Any]:
    """Docker keeps more than we do, so that its rotation takes nothing that is still to be copied.

    Not its compact format `local`: that loses the end of lines longer than 16 KiB (seen with 20.10).
    """
    return {"Type": "json-file", "Config": {"max-size": str(2 * kept), "max-file": "2"}}


def _mount(mount: Mount) -> dict[str, Any]:
    is_path = mount.source.startswith("/")
    return {
        "Type": "bind" if is_path else "volume",
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": mount.read_only,
    }


def launched_here(labels: Mapping[str, str], mounts: Iterable[Mapping[str, Any]], home: str) -> str:
    """Our id of a container that the scheduler of this home launched; empty if it is another's. As Docker shows it.

    An image may have any labels, ours too. But none mounts a folder of the host, as we do with that of the socket.
    """
    id_ = labels.get(LABEL, "")
    of_host = [mount for mount in mounts if mount.get("Type") == "bind" and mount["Destination"] == SOCKETS]
    mine = any(PurePosixPath(mount["Source"]).name == id_ for mount in of_host)
    return id_ if mine and labels.get(LABEL_HOME) == home else ""


def _mounts(launch: Launch, given: Given, additions: Additions, places: Mapping[str, str]) -> Sequence[Mount]:
    return [
        *(Mount(places.get(v.source, v.source), v.target, read_only=v.read_only) for v in volumes(launch)),
        Mount(str(launch.socket_dir), SOCKETS),
        Mount(str(given.shim), SHIM),
        Mount(str(given.preload), PRELOAD),
        *additions.mounts,
    ]


def _port_bindings(ports: Sequence[str]) -> Mapping[str, list[dict[str, str]]]:
    """Docker's PortBindings. Raises EngineError."""
    bindings: dict[str, list[dict[str, str]]] = {}
    try:
        for port in map(parse_port, ports):
            bindings.setdefault(f"{port.inside}/{port.protocol}", []).append({"HostPort": str(port.host)})
    except Problem as problem:
        raise EngineError(problem.message, code="bad_port", status=400, field="ports") from None
    return bindings

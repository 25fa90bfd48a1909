"""What the Docker engine is set to, and what of it a host's engine can enforce."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scheduler.engines.docker import options

log = logging.getLogger(__name__)

PIDS = 4096


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """`address` is a DOCKER_HOST. `memory` (bytes) and `pids` are for containers that ask for nothing.

    `memory` is also the most that one may ask for, and `host_memory` (bytes) the most that all may take together.
    `registries` is a Docker config.json with credentials. Volumes come from below `volume_roots`, or are named ones.
    `mounts`: others start containers, too, with volumes of ours (`Mountings`).
    `swarm`: what is launched here goes wherever the Swarm puts it that this engine is a manager of.
    """

    address: str
    gpu_access: str = "auto"
    memory: int | None = None
    host_memory: int | None = None
    pids: int = PIDS
    log_bytes: int = 100 << 20
    volume_roots: tuple[Path, ...] = ()
    registries: Path | None = None
    mounts: bool = False
    swarm: bool = False


def has_init(info: Mapping[str, Any]) -> bool:
    """Says that it has none; then containers start without, as by `docker run`."""
    if there := (info.get("InitCommit") or {}).get("ID") != "N/A":
        return there
    log.warning("Docker finds no docker-init: containers start without one, and orphans stay until they end.")
    return there


def limits_of(settings: DockerSettings, info: Mapping[str, Any]) -> options.DefaultLimits:
    """What this host's control groups can enforce; says what they cannot."""
    missing = [
        what
        for what, key in {"host memory": "MemoryLimit", "CPU": "CpuCfsQuota", "processes": "PidsLimit"}.items()
        if not info.get(key)
    ]
    if missing:
        log.warning("This host has no control group for %s: containers are not limited there.", ", ".join(missing))
    if not any("name=seccomp" in option and "unconfined" not in option for option in info.get("SecurityOptions", [])):
        log.warning("This Docker engine runs containers without a seccomp profile.")
    wanted = replace(
        wanted_limits(settings),
        pids=settings.pids if info.get("PidsLimit") else None,
        swap=bool(info.get("SwapLimit")),
    )
    return wanted.on(
        info["MemTotal"] if info.get("MemoryLimit") else None,
        float(info["NCPU"]) if info.get("CpuCfsQuota") else None,
    )


def wanted_limits(settings: DockerSettings) -> options.DefaultLimits:
    """What the settings say, whatever a host has."""
    return options.DefaultLimits(settings.memory, None, settings.pids, swap=True, host_memory=settings.host_memory)

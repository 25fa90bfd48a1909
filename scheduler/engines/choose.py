"""Which engine this host has. The one place where engines meet the settings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from django.conf import settings

from scheduler.engines.base import Engine, EngineAway, EngineError
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.settings import DockerSettings
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.runtime_environment import RuntimeEnvironment, Simulation, keep_copy

Own = Callable[[RuntimeEnvironment], Engine | None]
NOBODY: Mapping[str, Sequence[str]] = {}


async def choose(
    simulation: Simulation | None,
    living: Mapping[str, Sequence[str]] = NOBODY,
    own: Own = lambda _: None,
) -> Engine:
    """The engine that GPUSHARE_ENGINE names, started; `auto` takes Docker if it answers, else local processes.

    `swarm` is Docker, too: that of a manager, which gives what is launched to its Swarm. `living`: the names of this
    host's containers that have not ended, by their engine; while these are local processes `auto` stays with them.
    `own` gives the engine that a plug-in brings, if it brings one.

    Raises EngineAway if Docker is asked for by name, or was used before, and does not answer: try again later. And if
    something lives of another engine: this one cannot see it, nor what it holds on the cards.
    """
    engine = await _start(simulation, own, stays_local=living.keys() == {ProcessEngine.name})
    for other in living.keys() - {engine.name}:
        await engine.close()
        raise EngineAway(_lives_elsewhere(engine.name, other, living[other]))
    return engine


def _lives_elsewhere(name: str, other: str, names: Sequence[str]) -> str:
    shown = ", ".join([*sorted(names)[:3], *["…"] * (len(names) > 3)])[:100]
    return (
        f"{len(names)} container{'s' * (len(names) > 1)} ({shown}) may still run with the engine {other}, which {name} "
        f"cannot see. Start the scheduler with GPUSHARE_ENGINE={other} until they have ended. If {other} is gone for "
        "good, stop the scheduler and remove this node: `gpushare nodes NAME --remove --force`; they end as lost."
    )


async def _start(simulation: Simulation | None, own: Own, *, stays_local: bool) -> Engine:
    if settings.GPUSHARE_ENGINE == "swarm" and settings.GPUSHARE_AUDIT_KEY:
        raise EngineError(
            "GPUSHARE_ENGINE is swarm, and this host has joined with a database role of its own, which sees no launch "
            "but its own. The scheduler that speaks for a manager needs the appliance's own role: have a manager on "
            "the web side's host; on all other nodes GPUSHARE_ENGINE is docker."
        )
    shim = keep_copy(settings.GPUSHARE_BUILD / "libgpushare.so", settings.GPUSHARE_HOME / "shim")
    runtime_environment = RuntimeEnvironment(shim, simulation)
    if engine := own(runtime_environment):
        return engine
    if settings.GPUSHARE_ENGINE in ("docker", "swarm") or (settings.GPUSHARE_ENGINE == "auto" and not stays_local):
        docker = DockerEngine(settings.GPUSHARE_HOME, runtime_environment, docker_settings())
        try:
            await docker.start()
        except EngineAway:
            await docker.close()
            # Containers may be waiting there: after a boot, Docker can be later than we are.
            if settings.GPUSHARE_ENGINE != "auto" or docker.was_used:
                raise
        else:
            return docker
    # There lies `workload`, the program of the demo and of the documents.
    process = ProcessEngine(
        settings.GPUSHARE_HOME / "processes",
        runtime_environment,
        settings.GPUSHARE_BUILD,
        log_bytes=settings.GPUSHARE_LOG_BYTES,
    )
    await process.start()
    return process


def docker_settings() -> DockerSettings:
    return DockerSettings(
        address=settings.GPUSHARE_DOCKER_HOST,
        gpu_access=settings.GPUSHARE_GPU_ACCESS,
        memory=settings.GPUSHARE_CONTAINER_MEMORY,
        host_memory=settings.GPUSHARE_HOST_MEMORY,
        log_bytes=settings.GPUSHARE_LOG_BYTES,
        volume_roots=tuple(Path(root) for root in settings.GPUSHARE_VOLUME_ROOTS),
        registries=Path(path) if (path := settings.GPUSHARE_REGISTRY_CONFIG) else None,
        mounts=bool(settings.GPUSHARE_PLUGIN_PEOPLE),
        swarm=settings.GPUSHARE_ENGINE == "swarm",
    )

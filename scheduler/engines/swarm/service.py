"""From an order to the service that Swarm is asked to create. Typed fields in; nothing is ever passed through.

It is a job of one task that is begun once; where a launch is to be begun again, a service of one task. What it gets
is what Swarm can give, which is less than Docker can: no devices, so NVIDIA's runtime has to be the engine's default;
no new privileges only from Docker 25 on (older ones do not know the field, and say nothing); none of the folders of
the host.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from scheduler.engines.base import EngineError
from scheduler.engines.docker.options import DefaultLimits, resources, shared_memory
from scheduler.engines.placer import Order
from scheduler.engines.runtime_environment import Simulation, environment
from scheduler.engines.swarm.kinds import reservation
from web.services.placement.placement_ticket import PlacementTicket
from web.spec.constraints import Constraint, parse
from web.spec.inside.reserved import CARD, LIBRARIES, SOCKETS
from web.spec.restarts import Restart

DRIVER = "gpushare"  # of the volume: scheduler/plugin/
LABEL = "com.gpushare.launch"  # on the service and on its container: our id
LABEL_OWNER = "com.gpushare.owner"
SHIM = f"{SOCKETS}/libgpushare.so"  # the volume has it
NANO = 1_000_000_000
ONCE = {"ReplicatedJob": {"MaxConcurrent": 1, "TotalCompletions": 1}}
AGAIN_AFTER = 5  # seconds: by then the end of the run before is written down


def service_name(id_: str) -> str:
    """A second one of that name is refused: so the same order is never two services."""
    return f"gpushare-{id_}"


def launch_of(spec: Mapping[str, Any]) -> str:
    """Our id of the launch that this is the service of; empty if it is none of ours, whatever its label says."""
    id_ = str(spec["Labels"].get(LABEL, ""))
    try:
        return id_ if spec["Name"] == service_name(str(UUID(id_))) else ""
    except ValueError:
        return ""


def body(order: Order, simulation: Simulation | None, log_bytes: int, limits: DefaultLimits) -> dict[str, Any]:
    """Of POST /services/create. Raises EngineError."""
    labels = {LABEL: order.id, LABEL_OWNER: order.owner}
    task: dict[str, Any] = {
        "ContainerSpec": {
            "Image": order.image,
            "Args": list(order.command) or None,
            "Env": _environment(order, simulation),
            "Dir": order.working_dir,
            "User": order.user,
            # Its image is not known here, and an init of its own has to be process 1: else the node's engine decides.
            "Init": None if order.init else False,
            "Labels": labels,
            "Mounts": _mounts(order, simulation, limits),
            "CapabilityDrop": ["ALL"],
            "Privileges": {"NoNewPrivileges": True},
            "Healthcheck": {"Test": ["NONE"]},
        },
        "Resources": {
            "Limits": _limits(order, limits),
            "Reservations": {"GenericResources": reservation(dict.fromkeys(order.cards, order.quota))},
        },
        "RestartPolicy": _restart(order.restart),
        "Placement": {"Constraints": _constraints(order)},
        "LogDriver": {"Name": "json-file", "Options": {"max-size": str(2 * log_bytes), "max-file": "2"}},
    }
    return {
        "Name": service_name(order.id),
        "Labels": labels,
        "TaskTemplate": task,
        "Mode": {"Replicated": {"Replicas": 1}} if order.restart else ONCE,
    }


def _restart(asked: Restart | None) -> dict[str, Any]:
    """Swarm looks for a node anew each time: where it ran may be away."""
    if asked is None:
        return {"Condition": "none"}
    condition = "any" if asked.after_success else "on-failure"
    return {"Condition": condition, "MaxAttempts": asked.most or 0, "Delay": AGAIN_AFTER * NANO}


def _constraints(order: Order) -> list[str]:
    named = [Constraint("", equal=True, value=order.host)] if order.host else []
    return [each.of_docker() for each in [*named, *map(parse, order.constraints)]]


def _environment(order: Order, simulation: Simulation | None) -> list[str]:
    """GPUs by number: only the node knows their UUIDs, and a node's numbers are Docker's, too, while it is up.

    The version of a node's NVIDIA Container Toolkit is not known here (SECURITY.md), so what its loader searches is not
    a person's to say. Raises EngineError.
    """
    if "LD_LIBRARY_PATH" in order.environment:
        raise EngineError(
            "LD_LIBRARY_PATH cannot be set in a Swarm: set it in the image, or in the program's own start.",
            code="not_supported", status=409, field="env.LD_LIBRARY_PATH",
        )  # fmt: skip
    ours = environment(
        order.environment,
        gpus=[str(card) for card in order.cards],
        shim=SHIM,
        libraries=[f"{LIBRARIES}/sim"] if simulation else [],
        state=f"{CARD}/{simulation.state.name}" if simulation else None,
        alone=simulation is None,  # NVIDIA's runtime shows no others
    )
    return [f"{name}={_as_it_is(value)}" for name, value in ours.items()]


def _as_it_is(text: str) -> str:
    """In words of Go's templates, by which a Swarm reads environments: `{{.Node.Hostname}}` would be another text."""
    return text.replace("{{", '{{"{{"}}')


def _mounts(order: Order, simulation: Simulation | None, limits: DefaultLimits) -> list[dict[str, Any]]:
    """The volume has the order's name: Swarm mounts those that have none for writing only, and ours is read-only."""
    options = PlacementTicket(UUID(order.id), order.quota, tuple(order.cards), order.key).options()
    driver = {"Name": DRIVER, "Options": options}
    mounts: list[dict[str, Any]] = [
        {
            "Type": "volume",
            "Source": service_name(order.id),
            "Target": SOCKETS,
            "ReadOnly": True,
            "VolumeOptions": {"DriverConfig": driver},
        },
        {
            "Type": "tmpfs",
            "Target": "/dev/shm",
            "TmpfsOptions": {"SizeBytes": shared_memory(order.shm_size, order.memory or limits.memory)},
        },
    ]
    if simulation is not None:  # where each node keeps its own: the same paths on all
        mounts.append(_bind(str(simulation.libraries), f"{LIBRARIES}/sim", read_only=True))
        mounts.append(_bind(str(simulation.state.parent), CARD, read_only=False))
    return mounts


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _limits(order: Order, limits: DefaultLimits) -> dict[str, int]:
    asked = resources(order, limits)
    named = {"MemoryBytes": asked["Memory"], "NanoCPUs": asked["NanoCpus"], "Pids": asked["PidsLimit"]}
    return {name: most for name, most in named.items() if most}

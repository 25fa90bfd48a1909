"""The only writers of desired state: REST, pages and the admin site all call these.

Each function checks who asks, before it tells anything about what it is asked for, and then whether it makes sense;
it writes its rows in one transaction, and sends the scheduler a hint once they are committed. What then really happened
is in the command's outcome: see `wait_for`. Everything that can be refused without the scheduler is refused before a
row is written. All raise `web.errors.Problem`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from web import audit
from web.errors import Problem, conflict, invalid, not_found
from web.models import Command, Container, Gpu, Node
from web.people import allowances
from web.people.roles import Deed, require, require_steering, rights_of
from web.services import runs
from web.services.admission import account_of
from web.services.issuing import issue, require_scheduler
from web.services.issuing import settled as settled  # callers have these by this module
from web.services.issuing import wait_for as wait_for
from web.services.launching import launch as launch
from web.services.placement.place import place
from web.services.placement.policies import able_cards
from web.services.sharing import require_stoppable
from web.spec import quotas
from web.spec.requests import ChangeSpec, ComputeSpec, KillSpec, MoveSpec, NoteSpec, OrderSpec, PauseSpec, PolicySpec

SHARE = ("compute_weight", "compute_limit")


def pause(user: User, container: Container, note: str = "", *, free_memory: bool = False) -> Command:
    """Freezes it. What it holds stays held; with `free_memory` it goes to host memory first, and is everybody's."""
    PauseSpec.parse({"note": note, "free_memory": free_memory})
    return _steer(user, container, Command.Kind.PAUSE, note, **({"free_memory": True} if free_memory else {}))


def resume(user: User, container: Container, note: str = "") -> Command:
    NoteSpec.parse({"note": note})
    return _steer(user, container, Command.Kind.RESUME, note)


def kill(user: User, container: Container, grace: float = 0, note: str = "") -> Command:
    """Ends it: at once, or after its stop signal and up to `grace` seconds."""
    KillSpec.parse({"grace": grace, "note": note})
    return _steer(user, container, Command.Kind.KILL, note, grace=float(grace))


def move(user: User, container: Container, gpu: str, leaves: str = "", note: str = "") -> Command:
    """Moves what it has on one GPU of its host to another one. `leaves`: which it leaves, where it has several."""
    require_steering(user, container, str(Command.Kind.MOVE))
    MoveSpec.parse({"gpu": gpu, "leaves": leaves, "note": note})
    there = Gpu.objects.filter(uuid=gpu, present=True)
    if not (there.filter(node=container.node_id) if container.node_id else there).exists():
        raise Problem("unknown_gpu", "There is no such GPU on its host.", 400, "gpu")
    allowances.require_gpus(allowances.limits_of(container.owner), [gpu])
    return _steer(user, container, Command.Kind.MOVE, note, gpu=gpu, **({"leaves": leaves} if leaves else {}))


def remove(user: User, container: Container) -> Command:
    """Has the engine forget an ended container. Its history stays."""
    require_steering(user, container, str(Command.Kind.REMOVE))
    if container.removed_at is not None and runs.is_awaited(container):
        return _end_runs(user, container)
    if container.removed_at is not None:
        raise not_found(f'"{container.name}" was removed already.')
    if container.finished_at is None:
        raise conflict(f'"{container.name}" has not ended. Kill it first.', code="not_ended")
    return _steer(user, container, Command.Kind.REMOVE)


def _end_runs(user: User, container: Container) -> Command:
    """Of what a Swarm would begin again: nothing of it is anywhere, so there is nothing to wait for.

    One run at most is admitted before it, and is found here, or none after it: both hold the owner (runs.next_of).
    """
    done = {"done_at": timezone.now(), "outcome": Command.Outcome.DONE, "message": "It is not begun again."}
    with transaction.atomic():
        allowances.hold(container.owner)
        if not runs.is_awaited(container):
            raise conflict(f'"{container.name}" has begun again just now. Kill that run.', code="begun_again")
        kind = Command.Kind.REMOVE
        command = Command.objects.create(kind=kind, container=container, issued_by=user, **done)
        audit.record(user.get_username(), str(kind), container.pk, name=container.name, note=done["message"])
    return command


def change(user: User, container: Container, **fields: Any) -> Command:
    """Another `gpu_memory`, `priority`, `compute_weight` or `compute_limit` for a container that lives."""
    require_steering(user, container, str(Command.Kind.CHANGE))
    asked = ChangeSpec.parse(fields)
    if not asked:
        raise invalid(f"Nothing to change: give one or more of {', '.join(ChangeSpec().fields)}.")
    # An operator's own word counts; a service's does not, which steers what it launched for others under theirs.
    own_word = rights_of(user).may(Deed.STEER_ALL)
    limits = allowances.limits_of(user if own_word else container.owner)
    if "priority" in asked:
        allowances.require_priority(limits, asked["priority"])
    allowances.require_share(limits, **{name: asked[name] for name in SHARE if name in asked})
    require_stoppable(container, asked.get("compute_limit"))
    if (quota := asked.get("gpu_memory")) is not None:
        gpus = list(Gpu.objects.filter(claims__container=container) or Gpu.objects.filter(present=True))
        able_cards(gpus, quota, container.gpu_count)
        owner = container.owner
        _require_hours(container, quota)
        allowances.require_quota(owner, allowances.limits_of(owner), quota * container.gpu_count, besides=container)
    across: dict[str, Any] = {"across": True} if own_word and "priority" in asked else {}
    return _steer(user, container, Command.Kind.CHANGE, **asked, **across)


def set_policy(user: User, name: str) -> Command:
    """Another policy for everybody, from now on. Whether there is one of that name is the scheduler's to say."""
    require(user, Deed.SET_POLICY)
    PolicySpec.parse({"policy": name})
    return _direct(user, Command.Kind.POLICY, name, _all_nodes(), policy=name)


def set_compute(user: User, uuid: str, mode: str) -> Command:
    """How containers that compute share a GPU from now on: a `Compute`. The scheduler says whether it can."""
    require(user, Deed.SET_COMPUTE)
    gpu = _gpu(uuid)
    ComputeSpec.parse({"compute": mode})
    return _direct(user, Command.Kind.COMPUTE, gpu.uuid, {gpu.node: {}}, gpu=gpu.uuid, compute=mode)


def drain_gpu(user: User, uuid: str, reason: str = "") -> Command:
    """From now on nothing new is placed on it; what runs there goes on. Draining it again changes the reason."""
    require(user, Deed.MANAGE_NODES)
    gpu = _gpu(uuid)
    return _direct(user, Command.Kind.DRAIN, gpu.uuid, {gpu.node: {}}, gpu=gpu.uuid, reason=reason)


def undrain_gpu(user: User, uuid: str, note: str = "") -> Command:
    require(user, Deed.MANAGE_NODES)
    gpu = _gpu(uuid)
    return _direct(user, Command.Kind.UNDRAIN, gpu.uuid, {gpu.node: {}}, gpu=gpu.uuid, reason=note)


def _gpu(uuid: str) -> Gpu:
    """One that is in its host, whose scheduler lives. Raises Problem."""
    gpu = Gpu.objects.select_related("node").filter(uuid=uuid).first()
    if gpu is None:
        raise not_found("There is no such GPU here.")
    if not gpu.present:
        raise conflict(f"GPU {gpu.index} is not in this host any more.", code="gpu_gone")
    require_scheduler(gpu.node)
    return gpu


def reorder(user: User, ids: Iterable[str | UUID]) -> Command:
    """Puts the waiting containers into this order; those left out keep theirs, behind.

    Each node serves its own, so what is put before a container of another node is not served before it.
    """
    require(user, Deed.ORDER_QUEUE)
    order = [str(pk) for pk in OrderSpec.parse({"containers": [str(pk) for pk in ids]})["containers"]]
    if len(set(order)) != len(order):
        raise invalid("A container is named twice.", "containers")
    found = Container.objects.live().filter(pk__in=order).select_related("node").only("node")
    known = {str(each.pk): each.node for each in found}
    if missing := [pk for pk in order if pk not in known]:
        raise Problem("unknown_container", f"There is no live container {missing[0]}.", 400, "containers")
    parts: dict[Node, list[str]] = {}
    for pk in order:
        if (node := known[pk]) is not None:
            parts.setdefault(node, []).append(pk)
    if len(parts) > 1:
        nodes = {node: {"containers": part} for node, part in parts.items()}
    else:
        nodes = {node: {} for node in parts} or _all_nodes()
    return _direct(user, Command.Kind.REORDER, "queue", nodes, containers=order)


def forecast(
    user: User,
    gpu_memory: int,
    gpus: int | list[str] = 1,
    priority: int = 0,
    node: str = "",
    constraints: Sequence[str] = (),
    ttl_seconds: float | None = None,
) -> Command:
    """Asks the scheduler of the node where it would go whether a launch would fit now; `reason` says why there.

    A question: it changes nothing and is not recorded. Where a Swarm would choose the node, it is answered already.
    What a launch would be refused for, this is: the user's allowance, and the GPUs that they may use.
    """
    account = account_of(user)
    owner = user.get_username()
    where = place(account.limits, gpus, gpu_memory, node, asks=constraints, launches=True, owner=owner,
                  lasts=ttl_seconds)  # fmt: skip
    account.require(where, priority)
    if where.by_swarm:
        return _left_to_a_swarm(user, where.reason)
    return issue(user, Command.Kind.FORECAST, node=where.node.pk, gpu_memory=gpu_memory, gpus=where.gpus or gpus,
                 priority=priority, owner=owner, ttl_seconds=ttl_seconds, reason=where.reason)  # fmt: skip


def _left_to_a_swarm(user: User, reason: str) -> Command:
    """The answer, without asking a node: a Swarm goes by its own labels and reservations."""
    message = (
        f"{reason} It is started as soon as one has room, and when that is only Swarm knows. Name a node to hear of "
        "that one."
    )
    return Command.objects.create(
        kind=Command.Kind.FORECAST, issued_by=user, arguments={"reason": reason}, done_at=timezone.now(),
        outcome=Command.Outcome.DONE, message=message,
        result={"fits": None, "behind": [], "earliest": None, "message": message},
    )  # fmt: skip


def _require_hours(container: Container, quota: int) -> None:
    """Whoever raises it, more than it has is held on the owner's week, as a launch is."""
    held = [claim.quota for claim in container.claims.all()] or [quotas.asked(container.gpu_memory)]
    if quota > max(held):
        account_of(container.owner).require_hours()


def _steer(user: User, container: Container, kind: Command.Kind, note: str = "", **arguments: Any) -> Command:
    require_steering(user, container, str(kind))
    require_scheduler(container.node)
    with transaction.atomic():
        # no_key: what the scheduler writes meanwhile only refers to this row. It would wait for us with the audit chain
        # in its hands, which we are about to ask for.
        locked = Container.objects.select_for_update(of=("self",), no_key=True)
        now = locked.select_related("owner").get(pk=container.pk)
        if now.finished_at is not None and kind != Command.Kind.REMOVE:
            raise conflict(f'"{now.name}" has ended: it is {now.state.value}.', code="container_ended")
        command = issue(user, kind, now, note, **arguments)
        audit.record(user.get_username(), str(kind), now.pk, name=now.name, note=note, before=_standing(now),
                     **arguments)  # fmt: skip
    return command


def _all_nodes() -> dict[Node, dict[str, Any]]:
    return {node: {} for node in Node.objects.listed()}


def _direct(
    user: User, kind: Command.Kind, subject: str, nodes: Mapping[Node, Mapping[str, Any]], **arguments: Any
) -> Command:
    """Issues a command that is about hosts as a whole, and records it for the audit log. Raises Problem.

    `nodes`: whose it is to carry out, each with what is different there. One that is away does it when it is back.
    Which command is returned: that of the first that is alive.
    """
    require_scheduler()
    alive = sorted(nodes, key=lambda node: (not node.is_alive(), node.pk))
    with transaction.atomic():
        commands = [issue(user, kind, node=node.pk, **{**arguments, **nodes[node]}) for node in alive]
        audit.record(user.get_username(), str(kind), subject, **arguments)
    return commands[0]


def _standing(container: Container) -> dict[str, Any]:
    """What the audit log tells about a container before something was done to it."""
    quotas = {claim.gpu.uuid: claim.quota for claim in container.claims.select_related("gpu")}
    share = {name: getattr(container, name) for name in SHARE}
    return {"state": container.state.value, "priority": container.priority, "quota": quotas, **share}

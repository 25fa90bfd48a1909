"""Containers that nobody launches here: Docker starts them, and a volume of ours brings each its quota.

Docker says what to make, mount and take away, and never for whom. So whose such a container is, and up to which
allowance, is a setting: GPUSHARE_PLUGIN_PEOPLE names the accounts. The first is the owner where the volume names none.
Asked by the scheduler, to which Docker talks; it is the web side that knows people and allowances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from web import audit
from web.audit import seals
from web.errors import Problem, conflict, forbidden
from web.history.reports import gib_hours_of_week
from web.models import Claim, Container, Gpu, Node, Volume
from web.people import allowances
from web.people.roles import account_that_launches
from web.services import taking
from web.services.launching import free_name, within
from web.services.placing import place
from web.spec import handed, quotas, volumes
from web.spec.asked import COLUMNS

if TYPE_CHECKING:
    from django.contrib.auth.models import User

ACTOR = seals.DOCKER  # all that is known of who asked
ANYBODY = "*"
MOST_VOLUMES = 10_000  # of one host: who makes them without end is told so


@dataclass(frozen=True, slots=True)
class Mounting:
    """A container that Docker is about to start, as far as it is known. `gpus` are those to take if none are named."""

    id: UUID
    mount: str
    name: str
    image: str
    command: Sequence[str]
    gpu_memory: int  # bytes, on each GPU
    gpus: Sequence[str]


def _anyway() -> None:
    pass


def make(node: int, name: str, options: Mapping[str, str], ours: Callable[[], None] = _anyway) -> None:
    """Makes a volume. The same again is success. Raises Problem.

    `ours` is called first of all in the transaction, and raises if the node is another scheduler's by now.
    """
    try:
        with transaction.atomic():
            ours()
            _make(node, name, options)
    except Problem as problem:
        _refused("volume-refused", name, options, problem)
        raise


def _make(node: int, name: str, options: Mapping[str, str]) -> None:
    known = Volume.objects.select_for_update().filter(node=node)
    if (earlier := known.filter(name=name).first()) is not None:
        if earlier.options != dict(options):
            raise conflict(f'The volume "{name}" is there already, with other options: remove it first.')
        return
    if not name or len(name) > volumes.LONGEST_NAME:
        raise Problem("invalid", f"A volume's name has 1 to {volumes.LONGEST_NAME} characters.", 400)
    if known.count() >= MOST_VOLUMES:
        raise conflict(f"There are {MOST_VOLUMES} volumes already: remove those that nobody uses (docker volume rm).")
    if (brought := handed.parse(options)) is not None:
        taking.require(brought)
        Volume.objects.create(node_id=node, name=name, options=dict(options))
        return
    person, spec = _asked(options, "")
    _require_possible(person, spec, Node.objects.get(pk=node))
    Volume.objects.create(node_id=node, name=name, options=dict(options))
    audit.record(ACTOR, "volume", name, owner=person.get_username(), options=dict(options))


def _asked(options: Mapping[str, str], image: str) -> tuple[User, dict[str, Any]]:
    owner, fields = volumes.parse(options)
    return owner_of(owner), volumes.launch_of(fields, image)


def _require_possible(person: User, spec: dict[str, Any], here: Node) -> None:
    """Refuses what can never be. What this person holds just now is looked at when the volume is mounted."""
    if not Gpu.objects.filter(node=here, present=True).exists():
        raise Problem("no_gpu", "This host has no GPU that works: there is nothing to have a quota of.", 409)
    limits = allowances.limits_of(person)
    ever = replace(limits, containers=None, gpu_memory=None, compute_weights=None)
    place(person, ever, spec["gpus"], spec["gpu_memory"], spec["priority"], here=here)
    allowances.share(person, ever, spec["compute_weight"], spec["compute_limit"])
    needs = quotas.asked(spec["gpu_memory"]) * count_of(spec)
    if limits.gpu_memory is not None and needs > limits.gpu_memory:
        allowances.require_quota(person, limits, needs)


def count_of(spec: Mapping[str, Any]) -> int:
    """Of GPUs that are asked for."""
    return len(spec["gpus"]) if isinstance(spec["gpus"], list) else int(spec["gpus"])


def wanted(options: Mapping[str, str], label: Mapping[str, str]) -> tuple[int, int, list[str]]:
    """Bytes of quota on each GPU, how many GPUs, and which if they are named. `label`: of the image. Raises Problem."""
    _, fields = volumes.parse(options)
    spec = volumes.launch_of(fields, "")
    size = spec["gpu_memory"] or quotas.of_image(label)
    return size, count_of(spec), spec["gpus"] if isinstance(spec["gpus"], list) else []


def mount(
    node: int, volume: str, options: Mapping[str, str], mounting: Mounting, ours: Callable[[], None] = _anyway
) -> Container:
    """A container's record and its claims, in one transaction. Raises Problem, and has written only that in the audit.

    The container that this mount has made before, if it lives. `ours`: see `make`.
    """
    try:
        return _mount(node, volume, options, mounting, ours)
    except Problem as problem:
        _refused("mount-refused", volume, options, problem, container=mounting.name, image=mounting.image)
        raise


def _mount(
    node: int, volume: str, options: Mapping[str, str], mounting: Mounting, ours: Callable[[], None]
) -> Container:
    owner, spec = _asked(options, mounting.image)
    limits = allowances.limits_of(owner)
    if not mounting.image:  # nobody can know yet: it is looked at when it runs (`require_image_of`)
        limits = replace(limits, images=None)
    used = gib_hours_of_week(owner) if limits.gib_hours is not None else 0.0
    with transaction.atomic():
        ours()
        allowances.hold(owner)
        earlier = Container.objects.live().whole().filter(node=node, mount=mounting.mount).first()
        if earlier is not None:
            return earlier
        sized = spec | {"gpu_memory": mounting.gpu_memory}
        chosen = within(owner, limits, used, sized, Node.objects.get(pk=node)).gpus or list(mounting.gpus)
        spec |= {name: sized[name] for name in ("compute_weight", "compute_limit")}
        container = Container(
            pk=mounting.id,
            owner=owner,
            node_id=node,
            name=free_name(mounting.name, mounting.id),
            volume=volume,
            mount=mounting.mount,
            gpu_count=len(chosen),
            gpu_uuids=spec["gpus"] if isinstance(spec["gpus"], list) else [],
            **{name: spec[name] for name in COLUMNS} | {"image": mounting.image, "command": list(mounting.command)},
        )
        container.save(force_insert=True)
        gpus = Gpu.objects.filter(uuid__in=chosen)
        Claim.objects.bulk_create(Claim(container=container, gpu=gpu, quota=mounting.gpu_memory) for gpu in gpus)
        audit.record(ACTOR, "mount", container.pk, name=container.name, volume=volume, owner=owner.get_username(),
                     image=mounting.image, gpu_memory=mounting.gpu_memory, options=dict(options))  # fmt: skip
    return Container.objects.whole().get(pk=container.pk)


def require_image_of(container: Container, image: str) -> None:
    """Refuses a container whose image was not known when its volume was mounted. Raises Problem."""
    allowances.require_image(allowances.limits_of(container.owner), image)


def remove(node: int, name: str) -> None:
    """Removes a volume. One that is not there is success."""
    if Volume.objects.filter(node=node, name=name).delete()[0]:
        audit.record(ACTOR, "volume-removed", name)


def _refused(action: str, volume: str, options: Mapping[str, str], problem: Problem, **more: str) -> None:
    told = {name[:64]: str(value).replace("\0", "")[:200] for name, value in list(options.items())[:32]
            if name != handed.KEY}  # fmt: skip
    audit.record(ACTOR, action, volume[:200], options=told, code=problem.code, message=problem.message, **more)


def owner_of(asked: str) -> User:
    """Whose the containers of a volume are: who it names, if the setting lets it, or the setting's first. Problem."""
    people = settings.GPUSHARE_PLUGIN_PEOPLE
    names = [name for name in people if name != ANYBODY]
    if not people:
        raise forbidden("Nobody may have containers by a volume here: an admin allows it with GPUSHARE_PLUGIN_PEOPLE.")
    if not asked and not names:
        raise Problem("required", "Say whose it is: the option owner=NAME, of somebody with an account here.", 400)
    if asked and asked not in names and ANYBODY not in people:
        raise forbidden(
            f'"{asked[:64]}" may not be the owner of such containers: GPUSHARE_PLUGIN_PEOPLE names who may.'
        )
    return account_that_launches(asked or names[0])

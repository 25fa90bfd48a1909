"""Containers that nobody launches here: Docker starts them, and a volume of ours brings each its quota.

Docker says what to make, mount and take away, and never for whom. So whose such a container is, and up to which
allowance, is a setting: GPUSHARE_PLUGIN_PEOPLE names the accounts. The first is the owner where the volume names none.
Asked by the scheduler, to which Docker talks; it is the web side that knows people and allowances.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from web import audit
from web.audit import seals
from web.errors import Problem, conflict, forbidden
from web.models import Container, Gpu, Node, Volume
from web.people import allowances
from web.people.roles import account_that_launches
from web.services import admission
from web.services.admission import Account
from web.services.placement import accept_placement, placement_ticket
from web.services.placement.place import place
from web.spec import quotas
from web.spec.inside import volumes

ACTOR = seals.DOCKER  # all that is known of who asked
ANYBODY = "*"
MOST_VOLUMES = 10_000  # of one host: who makes them without end is refused


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


def make(node: int, name: str, options: Mapping[str, str], ours: Callable[[], None] = lambda: None) -> None:
    """Makes a volume. The same again is success. Raises Problem.

    `ours` is called first of all in the transaction, and raises if the node is another scheduler's by now.
    """
    with admission.refusals_recorded(ACTOR, "volume-refused", name, options=_printable(options)), transaction.atomic():
        ours()
        _make(node, name, options)


def _make(node: int, name: str, options: Mapping[str, str]) -> None:
    known = Volume.objects.select_for_update().filter(node=node)
    if (earlier := known.filter(name=name).first()) is not None:
        if earlier.options != dict(options):
            raise conflict(f'The volume "{name}" already exists, with other options: remove it first.')
        return
    if not name or len(name) > volumes.LONGEST_NAME:
        raise Problem("invalid", f"A volume's name has 1 to {volumes.LONGEST_NAME} characters.", 400)
    if known.count() >= MOST_VOLUMES:
        raise conflict(f"There are {MOST_VOLUMES} volumes already: remove unused ones (docker volume rm).")
    if (ticket := placement_ticket.parse(options)) is not None:
        accept_placement.require_wanted(ticket)
        Volume.objects.create(node_id=node, name=name, options=dict(options))
        return
    person, spec = _asked(options, "")
    _require_possible(person, spec, Node.objects.get(pk=node))
    Volume.objects.create(node_id=node, name=name, options=dict(options))
    audit.record(ACTOR, "volume", name, owner=person.get_username(), options=dict(options))


def _asked(options: Mapping[str, str], image: str) -> tuple[User, dict[str, Any]]:
    owner, spec = volumes.parse(options, image)
    return owner_of(owner), spec


def _require_possible(person: User, spec: dict[str, Any], here: Node) -> None:
    """Refuses what can never be. What this person holds just now is looked at when the volume is mounted."""
    if not Gpu.objects.filter(node=here, present=True).exists():
        raise Problem("no_gpu", "This host has no GPU that works: there is nothing to have a quota of.", 409)
    limits = allowances.limits_of(person)
    ever = replace(limits, containers=None, gpu_memory=None, gib_hours=None)
    where = place(ever, spec["gpus"], spec["gpu_memory"], here=here)
    Account(person, ever, 0.0).require(where, spec["priority"])
    allowances.share(ever, spec["compute_weight"], spec["compute_limit"])
    if limits.gpu_memory is not None and where.quota > limits.gpu_memory:
        allowances.require_quota(person, limits, where.quota)


def wanted(options: Mapping[str, str], label: Mapping[str, str]) -> tuple[int, int, list[str]]:
    """Bytes of quota on each GPU, how many GPUs, and which if they are named. `label`: of the image. Raises Problem."""
    _, spec = volumes.parse(options)
    size, gpus = spec["gpu_memory"] or quotas.of_image(label), spec["gpus"]
    return (size, len(gpus), gpus) if isinstance(gpus, list) else (size, gpus, [])


def mount(
    node: int, volume: str, options: Mapping[str, str], mounting: Mounting, ours: Callable[[], None] = lambda: None
) -> Container:
    """A container's record and its claims, in one transaction. Raises Problem, and has written only that in the audit.

    The container that this mount has made before, if it lives. `ours`: see `make`.
    """
    detail = {"options": _printable(options), "container": mounting.name, "image": mounting.image}
    with admission.refusals_recorded(ACTOR, "mount-refused", volume, **detail):
        owner, spec = _asked(options, mounting.image)
        with admission.held(owner, ours) as account:
            earlier = Container.objects.live().whole().filter(node=node, mount=mounting.mount).first()
            if earlier is not None:
                return earlier
            where = place(account.limits, spec["gpus"], mounting.gpu_memory, here=Node.objects.get(pk=node),
                          owner=owner.get_username())  # fmt: skip
            gpus = where.gpus or list(mounting.gpus)
            container = admission.admit(
                account,
                replace(where, claims=dict.fromkeys(gpus, mounting.gpu_memory)),
                spec,
                by=ACTOR,
                action="mount",
                detail={**detail, "volume": volume, "gpu_memory": mounting.gpu_memory, "options": dict(options)},
                pk=mounting.id,
                name=admission.free_name(mounting.name, mounting.id),
                volume=volume,
                mount=mounting.mount,
                gpu_uuids=spec["gpus"] if isinstance(spec["gpus"], list) else [],
                image=mounting.image,  # one that is not known yet is looked at when it runs (`require_image_of`)
                command=list(mounting.command),
            )
    return Container.objects.whole().get(pk=container.pk)


def _printable(options: Mapping[str, str]) -> dict[str, str]:
    return admission.printable(
        {name: text for name, text in list(options.items())[:32] if name != placement_ticket.KEY}
    )


def require_image_of(container: Container, image: str) -> None:
    """Refuses a container whose image was not known when its volume was mounted. Raises Problem."""
    allowances.require_image(allowances.limits_of(container.owner), image)


def remove(node: int, name: str) -> None:
    """Removes a volume. One that is not there is success."""
    if Volume.objects.filter(node=node, name=name).delete()[0]:
        audit.record(ACTOR, "volume-removed", name)


def owner_of(asked: str) -> User:
    """Whose the containers of a volume are: who it names, if the setting lets it, or the setting's first. Problem."""
    people = settings.GPUSHARE_PLUGIN_PEOPLE
    names = [name for name in people if name != ANYBODY]
    if not people:
        raise forbidden(
            "Containers by a volume are not allowed here: an admin allows them with GPUSHARE_PLUGIN_PEOPLE."
        )
    if not asked and not names:
        raise Problem(
            "required", "The owner is missing: give the option owner=NAME, an account of this appliance.", 400
        )
    if asked and asked not in names and ANYBODY not in people:
        raise forbidden(
            f'"{asked[:64]}" may not be the owner of such containers: GPUSHARE_PLUGIN_PEOPLE names who may.'
        )
    return account_that_launches(asked or names[0])

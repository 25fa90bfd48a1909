"""What people do with the hosts of the appliance: invite, drain, label, remove. No scheduler has to be there for it.

A node that is drained takes no new launches (placing.py); what runs there goes on. One that is removed is away, and is
empty or has what it held counted as lost; it is shown no more, its history stays, and it is back as soon as a
scheduler of its name starts.
"""

from collections.abc import Mapping

from django.contrib.auth.models import User
from django.db import OperationalError, transaction
from django.db.models import Case, F, Q, When
from django.db.models.functions import Now
from django.utils import timezone

from web import audit
from web.errors import conflict, invalid, not_found
from web.models import AllocationEvent, Claim, Command, Container, Gpu, Invitation, Node
from web.models.hosts import LAPSES
from web.models.states import LOST, NOT_STANDING, NOT_WAITING, NOTHING_HELD, NOTHING_USED
from web.people.roles import Deed, require
from web.services import planning
from web.services.joining import invitations, roles
from web.spec.nodes import LabelsSpec

LOCKED = "55P03"  # lock_not_available in PostgreSQL's table of errors
MOST_LABELS = 64  # of one node


def named(name: str) -> Node:
    """Raises Problem if there is none, or if it was removed."""
    if (node := Node.objects.listed().filter(name=name).first()) is None:
        raise not_found(f'There is no node "{name[:64]}".')
    return node


def invite(user: User, name: str) -> str:
    """The command with which a host of this name joins, once and within an hour. It is not kept. Raises Problem."""
    require(user, Deed.MANAGE_NODES)
    return invitations.command(name, invitations.invite(user.get_username(), name))


def drain(user: User, name: str, note: str = "") -> Node:
    """From now on it takes no new launches. Draining it again changes nothing."""
    return _draining(user, name, "drain", note)


def undrain(user: User, name: str, note: str = "") -> Node:
    return _draining(user, name, "undrain", note)


def _draining(user: User, name: str, action: str, note: str) -> Node:
    require(user, Deed.MANAGE_NODES)
    node = named(name)
    _set_drained(user.get_username(), node, action, note)
    node.refresh_from_db()
    return node


def drain_for(actor: str, node: Node, note: str) -> None:
    """What this person has announced ahead of time begins. They were asked about their rights then."""
    _set_drained(actor, node, "drain", note)


def _set_drained(actor: str, node: Node, action: str, note: str) -> None:
    drains = action == "drain"
    with transaction.atomic():
        changed = Node.objects.filter(pk=node.pk, drained_at__isnull=drains)
        if changed.update(drained_at=timezone.now() if drains else None):
            audit.record(actor, f"{action}-node", node.name, note=note)


def label(user: User, name: str, labels: Mapping[str, str | None]) -> Node:
    """Sets these labels and leaves the others; None takes one away."""
    require(user, Deed.MANAGE_NODES)
    given = LabelsSpec.parse({"labels": labels})["labels"]
    node = named(name)
    with transaction.atomic():
        now = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        after = {key: value for key, value in {**now.labels, **given}.items() if value is not None}
        if len(after) > MOST_LABELS:
            raise invalid(f"A node has at most {MOST_LABELS} labels; this would be {len(after)}.", "labels")
        if after != now.labels:
            Node.objects.filter(pk=node.pk).update(labels=after)
            audit.record(user.get_username(), "label-node", node.name, before=now.labels, labels=after)
    node.refresh_from_db()
    return node


def remove(user: User, name: str, *, force: bool = False) -> None:
    """Raises Problem while its scheduler lives, or while a container is thought to live there, but for `force`."""
    require(user, Deed.MANAGE_NODES)
    _expel(user.get_username(), named(name).name, force=force, alive=False)


def expel(actor: str, name: str, *, force: bool = False) -> None:
    """Takes a node's rights in the database away at once, whatever it does, and its invitation; it is listed no more.

    Raises Problem while a container is thought to live there; with `force` those end, in the records, as lost
    with their node. And while it is alive with the appliance's own rights, which cannot be taken away.
    """
    _expel(actor, name, force=force, alive=True)


def _expel(actor: str, name: str, *, force: bool, alive: bool) -> None:
    """`alive`: it may be, if it has a role of its own.

    A node with a role is cut off before anything waits for a lock, as it may hold each of them. After that there is no
    way back: what came to it meanwhile is lost with it.
    """
    before = Node.objects.filter(name=name).first()
    cut = False
    if before is not None:
        cut = bool(before.role) or roles.may_sign_in(before)
        _require_removable(before, force=force, alive=alive and cut)
        if cut:
            roles.cut(before)
    try:
        _delist(actor, name, cut=cut, force=force)
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", "") != LOCKED:
            raise
        raise conflict(
            f'"{name}" is not removed: another connection to the database holds a lock on its '
            "rows. It is still listed; its own connections are closed, if it has joined. Try again; pg_stat_activity "
            "names that connection.",
            code="node_not_cut",
        ) from error


def _require_removable(node: Node, *, force: bool, alive: bool) -> None:
    if not alive:
        _require_away(node)
    if not force:
        _require_empty(node)


def _delist(actor: str, name: str, *, cut: bool, force: bool) -> None:
    """`cut`: nobody writes for it any more."""
    lost = list[str]()
    with transaction.atomic():
        roles.be_patient()
        invited = Invitation.objects.filter(name=name).delete()[0]  # first, as who joins uses it up first
        # Whoever writes for it, or takes its name, does so before or after all of this.
        node = Node.objects.select_for_update(no_key=True).filter(name=name).first()
        if node is None and not invited:
            raise not_found(f'There is no node "{name[:64]}".')
        if node is not None:
            if roles.may_sign_in(node):  # a host joined after the role was cut, or after it was seen to have none
                raise conflict(f'"{name}" has joined at this moment. Remove it again.', code="node_alive")
            if not cut:
                _require_removable(node, force=force, alive=False)
            lost = _lose(node)
            # Without a holder: a scheduler that was away and comes back has lost the name, and begins anew.
            gone = Node.objects.filter(pk=node.pk)
            gone.update(removed_at=timezone.now(), drained_at=None, placer="", holder="", role="")
            Gpu.objects.filter(node=node).update(present=False)
            planning.rehome(node)
        audit.record(actor, "node-removed", name, **({"lost": lost} if lost else {}))


def _require_away(node: Node) -> None:
    silent = Q(seen_at=None) | Q(seen_at__lt=F("started_at"))  # its first sign of life is still to come
    starts = silent & ~Q(holder="") & Q(started_at__gte=Now() - LAPSES)
    there = Node.objects.filter(pk=node.pk)
    if (there.alive() | there.filter(starts)).exists():
        raise conflict(f'The scheduler of "{node.name}" runs. Drain the node, wait, and stop its scheduler first.',
                       code="node_alive")  # fmt: skip


def _require_empty(node: Node) -> None:
    """Refuses while a container is thought to live there."""
    live = Container.objects.live().filter(node=node)
    if count := live.count():
        names = ", ".join(live.order_by("name").values_list("name", flat=True)[:3])
        raise conflict(
            f'"{node.name}" holds {count} container{"s" * (count > 1)} that may still run ({names}'
            f"{', …' * (count > 3)}). "
            "If it is away, start its scheduler: it reports their state. If it is gone for good, remove it by "
            "force (`--force`): they are then recorded as lost.",
            code="node_holds",
        )


def lose_late() -> None:
    """The same of what came to a node while it was removed: a launch that had chosen it a moment before, a command."""
    left = Q(pk__in=Container.objects.live().values("node")) | Q(
        pk__in=Command.objects.filter(done_at=None).values("node")
    )
    for node in Node.objects.filter(left, removed_at__isnull=False):
        with transaction.atomic():
            removed = Node.objects.select_for_update(no_key=True).filter(pk=node.pk, removed_at__isnull=False)
            if removed.first() and (lost := _lose(node)):
                audit.record("gpushare", "node-removed", node.name, lost=lost)


def _lose(node: Node) -> list[str]:
    """No scheduler will ever tell what became of what it held: it has ended now, its open commands are refused. The
    ids."""
    now = timezone.now()
    live = Container.objects.live().filter(node=node).order_by("pk")
    ids = list(live.select_for_update(no_key=True).values_list("pk", flat=True))
    gone = Container.objects.filter(pk__in=ids)
    # Its start is by its node's clock, which may be ahead of ours: nothing ends before that.
    end = Case(When(started_at__gt=now, then=F("started_at")), default=now)
    gone.update(finished_at=end, removed_at=now, reason=LOST, suspended_since=None,
                **NOT_STANDING, **NOT_WAITING, **NOTHING_USED)  # fmt: skip
    Claim.objects.filter(container__in=ids).update(**NOTHING_HELD)
    open_ = Command.objects.filter(Q(node=node) | Q(container__in=ids), done_at=None)
    open_.update(done_at=now, outcome=Command.Outcome.REFUSED, code="node_removed", status=409,
                 message=f'The node "{node.name}" was removed.')  # fmt: skip
    ended = AllocationEvent.Kind.ENDED
    audit.append([AllocationEvent(at=now, kind=ended, container_id=id_, detail=LOST) for id_ in ids])
    return [str(id_) for id_ in ids]

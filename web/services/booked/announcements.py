"""Notices and windows of maintenance: made and withdrawn by admins; a window drains its nodes, or takes its GPU out of
service, when it begins.

A window's begin is carried out once, whichever web process looks and wherever it is killed: one transaction notes that
it has begun and writes all that follows from it. After it a person undrains the nodes, who knows that the work is done.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from web import audit
from web.errors import invalid, not_found
from web.models import Announcement, Command, Container, Gpu, Node
from web.people.roles import Deed, require
from web.services import nodes
from web.services.issuing import hint
from web.spec.booked import AnnouncementSpec

GRACE = 60.0  # seconds that containers have to end by themselves when a window ends them
Then = Announcement.Then


def announce(user: User, data: Any) -> Announcement:
    """Makes a notice (an `AnnouncementSpec`). Raises Problem."""
    require(user, Deed.ANNOUNCE)
    asked = AnnouncementSpec.parse(data)
    node = nodes.named(asked["node"]) if asked["node"] else None
    gpu = Gpu.objects.select_related("node").filter(uuid=asked["gpu"]).first() if asked["gpu"] else None
    if asked["gpu"] and gpu is None:
        raise invalid("There is no such GPU here.", "gpu")
    if node is not None and gpu is not None:
        raise invalid("A notice is about a node or about a GPU, not both.", "gpu")
    _require_times(asked["begins_at"], asked["ends_at"])
    if asked["begins_at"] is None and asked["then"] != Then.STAY:
        raise invalid("Only a window of maintenance moves or ends containers: give begins_at and ends_at.", "then")
    with transaction.atomic():
        made = Announcement.objects.create(**asked | {"node": node, "gpu": gpu}, made_by=user.get_username())
        audit.record(user.get_username(), "announce", f"announcement {made.pk}", text=made.said, then=made.then)
    return made


def _require_times(begins: datetime | None, ends: datetime | None) -> None:
    now = timezone.now()
    if begins is not None and begins <= now:
        raise invalid("A window begins in the future.", "begins_at")
    if begins is not None and ends is None:
        raise invalid("A window needs an end: give ends_at.", "ends_at")
    if ends is not None and ends <= (begins or now):
        raise invalid("This ends before it begins." if begins else "This is over already.", "ends_at")


def withdraw(user: User, pk: int) -> None:
    """It is shown no more, and what it would begin does not begin. What has begun stays: nodes stay drained."""
    require(user, Deed.ANNOUNCE)
    with transaction.atomic():
        if not Announcement.objects.current(timezone.now()).filter(pk=pk).update(withdrawn_at=timezone.now()):
            raise not_found("There is no such notice, or it is over.")
        audit.record(user.get_username(), "announcement-withdrawn", f"announcement {pk}")


def begin_due(now: datetime) -> None:
    """Begins each window whose time has come. One that nobody looked at while it lasted begins no more."""
    for window in Announcement.objects.current(now).filter(begins_at__lte=now, begun_at=None):
        with transaction.atomic():
            mine = Announcement.objects.filter(pk=window.pk, begun_at=None, withdrawn_at=None)
            if mine.update(begun_at=now):
                _begin(window)


def _begin(window: Announcement) -> None:
    if window.gpu is None:
        for node in [window.node] if window.node else Node.objects.listed():
            nodes.drain_for(window.made_by, node, note=window.said)
    by = get_user_model().objects.filter(username=window.made_by).first()
    orders = list(_orders(window))
    for node_id, kind, container, arguments in orders:
        note, named = (window.said, {"name": container.name, "note": window.said}) if container else ("", {})
        Command.objects.create(kind=kind, container=container, node_id=node_id, issued_by=by, arguments=arguments,
                               note=note[:500])  # fmt: skip
        subject = container.pk if container else arguments["gpu"]
        audit.record(window.made_by, str(kind), subject, **named, **arguments)
    for pk in {node_id for node_id, *_ in orders}:
        transaction.on_commit(partial(hint, pk))


def _orders(window: Announcement) -> Iterator[tuple[int | None, Command.Kind, Container | None, dict[str, Any]]]:
    """What schedulers are to do, those of which nodes: of a card's service its scheduler is the one to say."""
    if window.gpu is not None:
        yield window.gpu.node_id, Command.Kind.DRAIN, None, {"gpu": window.gpu.uuid, "reason": window.said[:500]}
    for each in containers_of(window):
        if window.then == Then.MOVE and each.swapped_at is None:
            yield each.node_id, Command.Kind.PAUSE, each, {"free_memory": True}
        elif window.then == Then.END:
            yield each.node_id, Command.Kind.KILL, each, {"grace": GRACE}


def containers_of(window: Announcement) -> QuerySet[Container]:
    """The live containers that it is about."""
    live = Container.objects.live().exclude(node=None)
    if window.gpu_id is not None:
        return live.filter(claims__gpu=window.gpu_id).distinct()
    return live.filter(Q(node=window.node_id) if window.node_id else Q()).distinct()

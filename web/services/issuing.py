"""How a command reaches the scheduler: a row, a hint to look at it, and a wait for the outcome."""

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, transaction
from django.db.models.signals import m2m_changed, post_delete, post_save
from django.utils import timezone

from web.errors import Problem
from web.models import Command, Container, GroupShares, Node, PersonShares
from web.models.hosts import SIGN_OF_LIFE

log = logging.getLogger(__name__)

REFUSALS = (400, 403, 404, 409, 429, 500, 503)  # statuses with which a scheduler refuses
ANSWER_WITHIN = 5.0  # seconds that a person waits for the outcome; later ones are shown where the container is
LOOK_AGAIN = 0.2  # seconds; so late is an outcome of which the scheduler's word was lost


def issue(
    user: User,
    kind: Command.Kind,
    container: Container | None = None,
    note: str = "",
    *,
    node: int | None = None,
    **arguments: Any,
) -> Command:
    """Writes a command for the scheduler of a node, by itself the container's, and, once it is committed, tells it."""
    node = container.node_id if node is None and container is not None else node
    command = Command.objects.create(
        kind=kind, container=container, node_id=node, issued_by=user, arguments=arguments, note=note[:500]
    )
    transaction.on_commit(partial(hint, node))
    return command


def hint_channel(node: int) -> str:
    """Where a node's scheduler hears hints."""
    return f"scheduler.{node}"


def hint(node: int | None = None, what: str = "wake") -> None:
    """Wakes the scheduler of a node, or of all. Only a hint: it looks by itself too, so a lost one costs a moment."""
    if node is None:
        for each in Node.objects.listed().values_list("pk", flat=True):
            hint(each, what)
        return
    layer = get_channel_layer()
    if layer is None:
        return
    # Without a change of threads where the layer can do that: a launch waits for it.
    tell = getattr(layer, "tell", None) or async_to_sync(layer.send)
    try:
        tell(hint_channel(node), {"type": what})
    except Exception as error:  # a full channel, Redis away: whatever it is, the row is there
        why = str(error) or type(error).__name__
        log.warning("The scheduler could not be woken (%s); it will look by itself.", why)


def connect() -> None:
    """From now on schedulers hear of other shares and groups, however these come to change."""
    for model in (PersonShares, GroupShares):
        post_save.connect(_shares_changed, model, dispatch_uid="gpushare")
        post_delete.connect(_shares_changed, model, dispatch_uid="gpushare")
    m2m_changed.connect(_shares_changed, get_user_model().groups.through, dispatch_uid="gpushare")


def _shares_changed(action: str = "", **_: Any) -> None:
    if not action.startswith("pre_"):
        transaction.on_commit(partial(hint, what="shares"))


def require_scheduler(node: Node | None = None) -> None:
    """Refuses while the scheduler of this node, or of every node, gives no sign of life: nobody would act on it."""
    nodes = Node.objects.listed() if node is None else Node.objects.filter(pk=node.pk)
    if nodes.filter(seen_at__gte=timezone.now() - SIGN_OF_LIFE).exists():
        return
    last = nodes.exclude(seen_at=None).order_by("-seen_at").values_list("seen_at", flat=True).first()
    since = f"since {last:%H:%M:%S} UTC" if last else "yet"
    whose = f' of "{node.name}"' if node is not None and Node.several() else ""
    raise Problem(
        "scheduler_away",
        f"The scheduler{whose} gave no sign of life {since}. Nothing was done; try again shortly.",
        503,
    )


def scheduler_is_alive() -> bool:
    """Whether that of any node is."""
    return Node.objects.listed().filter(seen_at__gte=timezone.now() - SIGN_OF_LIFE).exists()


def outcome_channel(command: UUID) -> str:
    """Where the scheduler says that a command is done."""
    return f"outcome.{command}"


def wait_for(command: Command, timeout: float | None = None) -> Command:
    """The command as it stands when it is finished, or when `timeout` seconds are over (then `done_at` is empty).

    With its container as that stands then. It is written and may be carried out: a database that cannot be asked
    meanwhile leaves its outcome unknown, and is no failure.
    """
    deadline = time.monotonic() + (ANSWER_WITHIN if timeout is None else timeout)
    while command.done_at is None and (left := deadline - time.monotonic()) > 0:
        async_to_sync(_hear)(outcome_channel(command.pk), min(LOOK_AGAIN, left))
        try:
            command = Command.objects.select_related("container__owner", "container__node").get(pk=command.pk)
        except DatabaseError as error:
            log.warning("Whether a command is done cannot be read now: %s", error)
            connection.close_if_unusable_or_obsolete()
    return command


def settled(command: Command) -> bool:
    """Whether the scheduler has done it; False while it has not answered. Raises its refusal as a Problem.

    A node's scheduler writes the status, and a stolen one any number: what is no error's is 409.
    """
    if command.outcome == Command.Outcome.REFUSED:
        status = command.status if command.status in REFUSALS else 409
        raise Problem(command.code or "refused", command.message, status, command.field)
    return command.done_at is not None


async def _hear(channel: str, patience: float) -> None:
    """Returns with the next message, or after `patience` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            try:
                await get_channel_layer().receive(channel)
            except Exception:  # Redis away, as `hint` has logged: the row will show it
                await asyncio.sleep(patience)

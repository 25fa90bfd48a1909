"""Who gets which notification: receivers, rules, silences, people's own wishes, changed only here.
REST and pages call it.

Receivers are admins' business, to look at as well: their addresses are often as good as a password.
"""

from typing import Any, TypeVar

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, models, transaction
from django.db.models import QuerySet
from django.utils import timezone

from web import audit
from web.errors import Problem, conflict, invalid, not_found
from web.models import Delivery, Receiver, Rule, Silence, Wish
from web.people.roles import Deed, require
from web.services.attention import Kind
from web.spec.notifying import NotificationsSpec, ReceiverSpec, RuleSpec, SilenceSpec, check_receiver

RECEIVER_FIELDS = tuple(str(name) for name in ReceiverSpec().fields)
MOST = 100  # receivers, rules and silences each: a page shows them all
TESTS_MOST = 3  # of a receiver that wait to be sent
KINDS = {Receiver: "receiver", Rule: "rule", Silence: "silence"}

M = TypeVar("M", Receiver, Rule, Silence)


def find(user: User, model: type[M], pk: int) -> M:
    """Raises Problem: 403, 404."""
    require(user, Deed.NOTIFY)
    found = model._default_manager.filter(pk=pk).first()
    if found is None:
        raise _gone(model)
    return found


def _gone(model: type[models.Model]) -> Problem:
    return not_found(f"There is no such {KINDS[model]}; it may have been removed.")


def add_receiver(user: User, data: Any) -> Receiver:
    """Raises Problem."""
    require(user, Deed.NOTIFY)
    asked = ReceiverSpec.parse(data)
    _check(asked)
    return _saved(user, Receiver(**asked), asked)


def change_receiver(user: User, pk: int, data: Any) -> Receiver:
    """Fields that are not given stay. What could not be reached is tried again at once."""
    receiver = find(user, Receiver, pk)
    asked = ReceiverSpec.parse_change(data)
    now = {name: asked.get(name, getattr(receiver, name)) for name in RECEIVER_FIELDS}
    _check(now)
    _saved(user, _with(receiver, asked), asked)
    Receiver.objects.filter(pk=pk).update(failures=0, retry_at=None)
    return find(user, Receiver, pk)


def _check(fields: dict[str, Any]) -> None:
    check_receiver(fields)
    if fields["kind"] == Receiver.Kind.MAIL and not settings.EMAIL_HOST:
        raise invalid("E-mail is not set up here: GPUSHARE_MAIL_HOST says which server takes it.", "kind")


def test_receiver(user: User, pk: int) -> Delivery:
    """Has a message sent that says what it is; what becomes of it stands among the deliveries."""
    receiver = find(user, Receiver, pk)
    if not receiver.enabled:
        raise conflict(f'"{receiver.name}" is switched off: nothing is sent to it.')
    now = timezone.now()
    with transaction.atomic():
        if not Receiver.objects.filter(pk=pk).update(retry_at=None):
            raise _gone(Receiver)
        made = Delivery.objects.create(receiver=receiver, phase=Delivery.Phase.TEST, made_at=now, due_at=now)
        audit.record(user.get_username(), "notify-test", receiver.name)
        # Counted last: who makes an entry of the audit log waits for others who do, and sees what they have made.
        if receiver.deliveries.filter(phase=Delivery.Phase.TEST, done_at=None).count() > TESTS_MOST:
            raise conflict("Three test messages are already waiting to be sent: check their results first.")
    return made


def add_rule(user: User, data: Any) -> Rule:
    require(user, Deed.NOTIFY)
    asked = RuleSpec.parse(data)
    return _saved(user, Rule(**_found(asked)), asked)


def change_rule(user: User, pk: int, data: Any) -> Rule:
    rule = find(user, Rule, pk)
    asked = RuleSpec.parse_change(data)
    return _saved(user, _with(rule, _found(asked)), asked)


def _found(asked: dict[str, Any]) -> dict[str, Any]:
    """With the receiver itself instead of its name."""
    for kind in asked.get("kinds", ()):
        _check_kind(kind, "kinds")
    if "receiver" not in asked:
        return asked
    receiver = Receiver.objects.filter(name=asked["receiver"]).first()
    if receiver is None:
        raise invalid(f'There is no receiver "{asked["receiver"]}".', "receiver")
    return asked | {"receiver": receiver}


def add_silence(user: User, data: Any) -> Silence:
    require(user, Deed.NOTIFY)
    asked = SilenceSpec.parse(data)
    if asked["kind"]:
        _check_kind(asked["kind"], "kind")
    if asked["until"] <= timezone.now():
        raise invalid("This is over already: a silence ends in the future.", "until")
    return _saved(user, Silence(made_by=user.get_username(), **asked), asked)


def remove(user: User, model: type[M], pk: int) -> None:
    """With what hangs on it: a receiver's rules, and its messages, sent or not."""
    found = find(user, model, pk)
    called = _called(found)
    with transaction.atomic():
        if not found.delete()[0]:
            raise _gone(model)
        audit.record(user.get_username(), f"{KINDS[model]}-removed", called)


def _called(row: M) -> str:
    return row.name if isinstance(row, Receiver) else f"{KINDS[type(row)]} {row.pk}"


def _check_kind(kind: str, field: str) -> None:
    known = [each.value for each in Kind]
    if kind not in known:
        raise invalid(f"{kind[:40]!r} is not a kind of attention. Known kinds: {', '.join(known)}.", field)


def _with(row: M, fields: dict[str, Any]) -> M:
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def _saved(user: User, row: M, asked: dict[str, Any]) -> M:
    model = type(row)
    new = row._state.adding
    detail = {name: _plain(value) for name, value in asked.items() if name != "secret"}
    changed = {"secret": "changed"} if asked.get("secret") else {}
    try:
        with transaction.atomic():
            if new:
                row.save()
            elif asked and not model._default_manager.filter(pk=row.pk).update(
                **{name: getattr(row, name) for name in asked}
            ):
                raise _gone(model)
            done = f"{KINDS[model]}-{'added' if new else 'changed'}"
            audit.record(user.get_username(), done, _called(row), **detail, **changed)
            if new and model._default_manager.count() > MOST:  # counted last, as in `test_receiver`
                raise conflict(f"There are {MOST} already, which is the most: remove one first.")
    except IntegrityError:
        raise _clash(model, asked) from None
    return row


def _clash(model: type[models.Model], asked: dict[str, Any]) -> Problem:
    """Why the database has not taken it."""
    if model is Rule:  # its receiver was removed meanwhile
        return invalid(f'There is no receiver "{asked["receiver"]}".', "receiver")
    return Problem("name_taken", f'A receiver named "{asked.get("name")}" already exists.', 409, "name")


def deliveries(receiver: str | None = None, open_: bool | None = None) -> QuerySet[Delivery]:
    """The newest first; of one receiver by name, and only what is still tried, or only the rest."""
    found = Delivery.objects.select_related("receiver", "episode", "notice__user")
    if receiver is not None:
        found = found.filter(receiver__name=receiver)
    return found if open_ is None else found.filter(done_at__isnull=open_)


def _plain(value: Any) -> Any:
    if isinstance(value, models.Model):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def wish_of(user: User) -> Wish:
    """The notifications that this person wants; what is usual, if they have not said."""
    return Wish.objects.filter(user=user).first() or Wish(user=user)


def set_wish(user: User, data: Any) -> Wish:
    """Fields that are not given stay."""
    asked = NotificationsSpec.parse_change(data)
    if asked.get("mail") and not (user.email and settings.EMAIL_HOST):
        why = (
            "You have no e-mail address here: an admin or the directory gives it."
            if settings.EMAIL_HOST
            else "E-mail is not set up on this appliance."
        )
        raise invalid(why, "mail")
    return Wish.objects.update_or_create(user=user, defaults=asked)[0]

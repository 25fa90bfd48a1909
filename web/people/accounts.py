"""Accounts: who is made, what their role is, who is switched off. REST, the pages and the command line call this."""

import secrets
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models.signals import post_save

from web import audit
from web.errors import Problem, conflict, invalid, not_found
from web.models import Token
from web.people import names, passwords, tokens
from web.people.roles import Deed, Role, admins, groups_besides_role, is_role, require, role_of
from web.spec.people import PersonChange, PersonSpec

MADE_UP = 12  # random bytes of a first password that nobody has chosen


def find(actor: User, username: str) -> User:
    """Somebody's account, for an admin. Raises Problem."""
    require(actor, Deed.MANAGE)
    user: User | None = get_user_model().objects.filter(username=username).first()
    if user is None:
        raise not_found("There is no account of this name.", "username")
    return user


def create(actor: User, asked: Any) -> tuple[User, str]:
    """An account (`PersonSpec`), and the password that was made up for it, if one was: it is shown this once."""
    require(actor, Deed.MANAGE)
    spec = PersonSpec.parse(asked)
    name = spec["username"]
    if fault := fault_of_name(name):
        raise invalid(fault, "username")
    user: User = get_user_model()(username=name, email=spec.get("email", ""))
    made_up = "" if "password" in spec else secrets.token_urlsafe(MADE_UP)
    password = spec.get("password", made_up)
    if password is None:
        user.set_unusable_password()
    else:
        passwords.require_good(user, password)
        user.set_password(password)  # outside of the transaction: it takes a third of a second
    with administered():
        require_new(name)
        try:
            with transaction.atomic():
                user.save(force_insert=True)
        except IntegrityError:  # by a directory, at this very moment
            raise _taken(name) from None
        if "role" in spec:
            _give_role(user, Role[spec["role"].upper()])
        _put_into(user, spec.get("groups", []))
        how = "made up" if made_up else "given" if password else "none"
        audit.record(actor.get_username(), "person-created", name, **_audit_detail(user), password=how)
    return user, made_up


def change(actor: User, user: User, asked: Any) -> User:
    """Another role, groups, address or password, or switched off or on (`PersonChange`). Raises Problem."""
    require(actor, Deed.MANAGE)
    spec = PersonChange.parse(asked)
    if not spec:
        raise invalid(f"Nothing to change: give one or more of {', '.join(PersonChange().fields)}.")
    if "password" in spec:
        passwords.require_good(user, spec["password"])
        user.set_password(spec["password"])
        hashed = user.password
    with administered():
        now: User = get_user_model().objects.select_for_update(no_key=True).get(pk=user.pk)
        before = _audit_detail(now)
        if "password" in spec:
            now.password = hashed
            now.save(update_fields=["password"])
            audit.record(actor.get_username(), "password-set", now.get_username())
        if "role" in spec:
            _give_role(now, Role[spec["role"].upper()])
        if "groups" in spec:
            _put_into(now, spec["groups"])
        if "email" in spec:
            now.email = spec["email"]
            now.save(update_fields=["email"])
        if "active" in spec:
            _switch(actor, now, spec["active"])
        after = _audit_detail(now)
        if changed := [name for name in after if after[name] != before[name]]:
            audit.record(actor.get_username(), "person-changed", now.get_username(),
                         before={name: before[name] for name in changed},
                         after={name: after[name] for name in changed})  # fmt: skip
    return now


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Around what looks whether a name is free and takes it, in one transaction; and around what could take the last
    admin's role."""
    with transaction.atomic():
        list(Group.objects.select_for_update(no_key=True).filter(name=Role.ADMIN.group))
        yield


@contextmanager
def administered() -> Iterator[None]:
    """Around a change of who may do what: in one transaction, one at a time, undone if it would leave no admin."""
    with one_at_a_time():
        yield
        if not admins().exists():
            raise conflict("This would leave no admin. Make another account an admin first.", code="last_admin")


def require_new(username: str, besides: User | None = None) -> None:
    """Refuses a name that can be taken for another, and one that somebody has. Raises Problem.

    `besides`: the account that is to get it. What was named earlier keeps its name.
    """
    if fault := names.fault_of_scripts(username):
        raise invalid(fault, "username")
    everybody = get_user_model().objects
    others = everybody.exclude(pk=besides.pk) if besides else everybody.all()
    if same := names.alike(others, "username", username):
        raise _taken(same)


def fault_of_name(username: str) -> str:
    """Why no account may have this name; empty if one may.

    Names end up in paths ("{user}" in GPUSHARE_VOLUME_ROOTS), so what Django's forms refuse is refused everywhere: "/"
    and control characters among it. So is a name that Django would write differently: that one may be another's.
    """
    model = get_user_model()
    try:
        model._meta.get_field("username").run_validators(username)
    except ValidationError as error:
        return " ".join(error.messages)
    if not username or username in (".", ".."):
        return "A name is letters, digits and @.+-_, and not dots alone."
    if (normal := model.normalize_username(username)) != username:
        return f"Write it as {normal!r}."
    return ""


def fault_of_group(name: str) -> str:
    """Why no group may have this name; empty if one may. It ends up in addresses."""
    if not name or name != name.strip() or not name.isprintable() or "/" in name or name in (".", ".."):
        return "A group's name is 1 to 150 characters that can be printed, without a slash or spaces around it."
    if (normal := unicodedata.normalize("NFKC", name)) != name:
        return f"Write it as {normal!r}."
    return ""


def by_directory(user: User) -> list[str]:
    """The groups here that a directory decides on anew whenever this person signs in; empty for local accounts."""
    return [] if user.has_usable_password() else sorted(set(settings.GPUSHARE_GROUPS.values()))


def connect() -> None:
    post_save.connect(_end_what_is_open, get_user_model(), dispatch_uid="gpushare")


def _end_what_is_open(instance: User, **_: Any) -> None:
    """Whoever is switched off, in whatever way, has no token and no session left that would be good again later."""
    if instance.is_active:
        return
    for token in Token.objects.filter(user=instance):
        token.delete()
    for session in Session.objects.iterator():
        if session.get_decoded().get("_auth_user_id") == str(instance.pk):
            session.delete()


def _switch(actor: User, user: User, active: bool) -> None:
    if user.is_active == active:
        return
    if not active:
        for token in Token.objects.filter(user=user):
            tokens.end(actor, token)
    user.is_active = active
    user.save(update_fields=["is_active"])


def _give_role(user: User, role: Role) -> None:
    user.groups.remove(*Group.objects.filter(name__in=[each.group for each in Role if each is not role]))
    user.groups.add(Group.objects.get_or_create(name=role.group)[0])
    if user.is_superuser and role is not Role.ADMIN:
        user.is_superuser = False
        user.save(update_fields=["is_superuser"])


def _put_into(user: User, asked: Iterable[str]) -> None:
    """Makes these all the groups that the user is in, the role's aside."""
    wanted = set(asked)
    found = {group.name: group for group in Group.objects.filter(name__in=wanted)}
    if missing := sorted(wanted - found.keys()):
        raise Problem("unknown_group", f'There is no group "{missing[0]}".', 400, "groups")
    if roles := [name for name, group in found.items() if is_role(group)]:
        raise invalid(f'"{roles[0]}" is a role and no group: give it as the role.', "groups")
    held = {group for group in user.groups.all() if not is_role(group)}
    user.groups.remove(*(held - set(found.values())))
    user.groups.add(*found.values())


def _audit_detail(user: User) -> dict[str, Any]:
    """What the audit log tells of an account, before and after."""
    fresh = get_user_model().objects.get(pk=user.pk)
    return {
        "role": role_of(fresh).group,
        "groups": sorted(groups_besides_role(fresh)),
        "active": fresh.is_active,
        "email": fresh.email,
    }


def _taken(name: str) -> Problem:
    return conflict(f'There is an account "{name}" already.', "username", "name_taken")

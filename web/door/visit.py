"""Who comes in, to which container, and whether they still may."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import F

from web import audit
from web.errors import Problem
from web.models import Container, SshKey
from web.people import ssh_keys
from web.people.roles import Deed, require, require_steering, steering_all

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = logging.getLogger(__name__)


@dataclass
class Visit:
    """One connection's. `address`: where it comes from. Without a `key` it is a certificate's, signed by `authority` (a
    fingerprint)."""

    user: User
    container: Container
    address: str
    key: SshKey | None = None
    authority: str = ""
    began: float = 0.0

    def look(self) -> None:
        """Whether they still may. Raises Problem."""
        user = get_user_model().objects.filter(pk=self.user.pk, is_active=True).first()
        if user is None or (self.key and not SshKey.objects.filter(pk=self.key.pk, user=user).exists()):
            raise Problem("not_authenticated", "This key was removed, or its account is disabled.", 401)
        container = _living().filter(pk=self.container.pk).first()
        if container is None:
            raise Problem("container_ended", "The container has ended.", 409)
        _require(user, container)
        self.user, self.container = user, container

    def begin(self) -> None:
        self.began = time.monotonic()
        if self.key:
            ssh_keys.note_use(self.key)
            self.record("ssh-opened", key=self.key.fingerprint)
        else:
            self.record("ssh-opened", certificate_of=self.authority)

    def end(self) -> None:
        self.record("ssh-closed", seconds=round(time.monotonic() - self.began, 1))

    def record(self, action: str, **detail: Any) -> None:
        with audit.origin(self.address):
            audit.record(self.user.get_username(), action, self.container.pk, name=self.container.name, **detail)


def admitted(fingerprint: str, name: str, address: str) -> Visit | None:
    """Whoever has this key and may start programs in the living container of this name or id; None: nobody may.

    Of several accounts with one key it is the owner's, else the first that may: anybody can add a key that is public.
    """
    container = _named(name)
    if container is None:
        return None
    keys = ssh_keys.with_fingerprint(fingerprint)
    for key in sorted(keys, key=lambda each: each.user_id != container.owner_id):
        if _may(key.user, container):
            return Visit(key.user, container, address, key)
    return None


def admitted_by_certificate(name: str, address: str) -> list[Visit]:
    """Of everybody who may start programs in the living container of this name or id, its owner first."""
    container = _named(name)
    if container is None:
        return []
    people = [container.owner, *steering_all().exclude(pk=container.owner_id)]
    return [Visit(user, container, address) for user in people if user.is_active and _may(user, container)]


def _may(user: User, container: Container) -> bool:
    try:
        _require(user, container)
    except Problem as problem:
        log.info("ssh to %s was refused for %s: %s", container.name, user.get_username(), problem.message)
        return False
    return True


def _named(name: str) -> Container | None:
    found: Container | None = _living().filter(**{"pk": _uuid(name)} if _uuid(name) else {"name": name}).first()
    return found


def _living() -> Any:
    return Container.objects.live().select_related("owner").annotate(named_node=F("node__name"))


def _require(user: User, container: Container) -> None:
    require(user, Deed.EXEC)
    require_steering(user, container, "start anything in")


def _uuid(name: str) -> UUID | None:
    try:
        return UUID(name) if len(name) == 36 else None
    except ValueError:
        return None

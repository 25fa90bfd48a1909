"""Who comes in, to which container, and whether they still may."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import F

from web import audit
from web.errors import Problem
from web.models import Container, SshKey
from web.people import ssh_keys
from web.people.roles import Deed, require, require_steering

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = logging.getLogger(__name__)


@dataclass
class Visit:
    """One connection's. `address`: where it comes from."""

    key: SshKey
    container: Container
    address: str
    began: float = 0.0

    @property
    def user(self) -> User:
        return self.key.user

    def look(self) -> None:
        """Whether they still may. Raises Problem."""
        key = SshKey.objects.select_related("user").filter(pk=self.key.pk, user__is_active=True).first()
        if key is None:
            raise Problem("not_authenticated", "This key is no longer known here, or its account is switched off.", 401)
        container = _living().filter(pk=self.container.pk).first()
        if container is None:
            raise Problem("container_ended", "The container has ended.", 409)
        _require(key.user, container)
        self.key, self.container = key, container

    def begin(self) -> None:
        self.began = time.monotonic()
        ssh_keys.note_use(self.key)
        self.record("ssh-opened", key=self.key.fingerprint)

    def end(self) -> None:
        self.record("ssh-closed", seconds=round(time.monotonic() - self.began, 1))

    def record(self, action: str, **detail: Any) -> None:
        with audit.origin(self.address):
            audit.record(self.user.get_username(), action, self.container.pk, name=self.container.name, **detail)


def admitted(fingerprint: str, name: str, address: str) -> Visit | None:
    """Whoever has this key and may start programs in the living container of this name or id; None: nobody may.

    Of several accounts with one key it is the owner's, else the first that may: anybody can add a key that is public.
    """
    container = _living().filter(pk=_uuid(name)).first() if _uuid(name) else _living().filter(name=name).first()
    if container is None:
        return None
    keys = ssh_keys.with_fingerprint(fingerprint)
    for key in sorted(keys, key=lambda each: each.user_id != container.owner_id):
        try:
            _require(key.user, container)
        except Problem as problem:
            log.info("ssh to %s was refused for %s: %s", container.name, key.user.get_username(), problem.message)
        else:
            return Visit(key, container, address)
    return None


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

"""What a new appliance needs before anybody can sign in: the role groups, an admin, and the admin's token."""

import os
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import DatabaseError, transaction

from web.models import Token
from web.people import tokens
from web.people.roles import FOR_OTHERS, Role

ADMIN = "admin"


def is_new() -> bool:
    """Whether there is nobody yet but the first administrator."""
    with suppress(DatabaseError):  # away or busy: whoever signs in sees that
        return list(User.objects.values_list("username", flat=True)[:2]) == [ADMIN]
    return False


def ensure_admin() -> str:
    """The key in GPUSHARE_HOME/admin-token, made at the first start and again if the file or its token was deleted.

    It is the token, and at first also the password, of the user "admin". Safe to call at every start.
    """
    path = settings.GPUSHARE_HOME / "admin-token"
    for name in (*(role.group for role in Role), FOR_OTHERS):
        Group.objects.get_or_create(name=name)
    if path.exists():
        key = path.read_text().strip()
        if Token.objects.filter(digest=tokens.digest(key)).exists():
            return key
    with transaction.atomic():
        admin, created = User.objects.get_or_create(username=ADMIN, defaults={"is_superuser": True, "is_staff": True})
        _, key = tokens.make(admin, name="admin-token")
        if created:
            admin.set_password(key)
            admin.save(update_fields=["password"])
        _write_private(path, key)
    return key


def _write_private(path: Path, text: str) -> None:
    """Replaces the file in one step; nobody but its owner can ever read it."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)

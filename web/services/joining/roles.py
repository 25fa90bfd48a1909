"""A node's own PostgreSQL role: made, given a new password, taken away. An admin's functions do it (setup.py)."""

import secrets
import time

from django.db import connection, transaction

from web.errors import conflict
from web.models import Node
from web.services.joining import rules
from web.services.joining.setup import SCHEMA, command, is_done

WITHIN = 8.0  # seconds for cutting a node off
PATIENCE = "1500ms"  # for each lock of what comes after that: whoever holds one then is not the node


def require_setup() -> None:
    """Raises Problem if an admin of PostgreSQL has not set it up for nodes."""
    if not is_done():
        raise conflict(
            "PostgreSQL is not set up for nodes: the appliance's own role may make no roles, and needs functions of a "
            f"superuser for that. Once, where PostgreSQL is: {command()}",
            code="no_setup",
        )


def give(node: Node) -> str:
    """Its role, made if it has none, with a new password, which is returned. Raises DatabaseError.

    The rules have to be in the database (`rules.apply`).
    """
    password = secrets.token_urlsafe(24)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SELECT {SCHEMA}.let_in(%s, %s)", [node.pk, password])
        Node.objects.filter(pk=node.pk).update(role=cursor.fetchone()[0])
    return password


def may_sign_in(node: Node) -> bool:
    """Whether PostgreSQL lets its role in, whatever the node's row says."""
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        role = rules.name_of_role(node.pk)
        cursor.execute("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = %s AND rolcanlogin)", [role])
        return bool(cursor.fetchone()[0])


def cut(node: Node) -> None:
    """It may do nothing from now on, its connections are gone, whatever they hold, and so is the role.

    Within WITHIN seconds, or raises Problem (`node_not_cut`). Not within a transaction: a node connects anew until the
    first step is committed.
    """
    require_setup()
    ends = time.monotonic() + WITHIN
    if not _call("shut_out(%s)", node.pk):
        raise conflict(
            f'"{node.name}" is not cut off: it changes its own role in PostgreSQL all the time, and was faster. '
            "Nothing is changed. Try again; or close its host out in pg_hba.conf first.",
            code="node_not_cut",
        )
    if not _call("gone(%s, %s)", node.pk, max(0, round((ends - time.monotonic()) * 1000))):
        raise conflict(
            f'"{node.name}" may not sign in to PostgreSQL any more, but one of its connections does not end: a process '
            f"of PostgreSQL hangs (SELECT * FROM pg_stat_activity WHERE usename = '{node.role}'). The node is still "
            "listed. End that process, or restart PostgreSQL; then remove the node again.",
            code="node_not_cut",
        )


def be_patient() -> None:
    """In this transaction, a lock that somebody else has is waited for a moment only. Raises DatabaseError then."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")


def _call(function: str, *arguments: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {SCHEMA}.{function}", arguments)
        return bool(cursor.fetchone()[0])

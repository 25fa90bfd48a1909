"""A node's own PostgreSQL role: made, given a new password, taken away."""

from __future__ import annotations

import secrets

from django.db import connection, transaction
from psycopg import sql

from web.models import Node
from web.services.joining import rules

CONNECTIONS = 8  # at once: a scheduler has one, commands on its host have theirs


def give(node: Node) -> str:
    """Its role, made if it has none, with a new password, which is returned. Raises DatabaseError.

    The rules have to be in the database (`rules.apply`).
    """
    name, password = node.role or rules.name_of_role(node.pk), secrets.token_urlsafe(24)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name])
        verb = "ALTER" if cursor.fetchone() else "CREATE"
        cursor.execute(
            _text(f"{verb} ROLE {{}} LOGIN CONNECTION LIMIT {CONNECTIONS} PASSWORD {{}}", name, sql.Literal(password))
        )
        cursor.execute(_text("GRANT {} TO {}", rules.group(), name))
        Node.objects.filter(pk=node.pk).update(role=name)
    return password


def take(node: Node) -> None:
    """It may do nothing from now on, in whatever connection it has; and the role goes. Raises DatabaseError."""
    if not node.role:
        return
    with transaction.atomic(), connection.cursor() as cursor:
        Node.objects.filter(pk=node.pk).update(role="")  # by which the rules know it
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [node.role])
        if not cursor.fetchone():
            return
        cursor.execute(_text("ALTER ROLE {} NOLOGIN", node.role))
        cursor.execute(_text("REVOKE {} FROM {}", rules.group(), node.role))
        cursor.execute(_text("DROP ROLE {}", node.role))


def _text(statement: str, *names: str | sql.Literal) -> str:
    parts = [name if isinstance(name, sql.Literal) else sql.Identifier(name) for name in names]
    return sql.SQL(statement).format(*parts).as_string(connection.connection)

"""PostgreSQL functions, of services/joining/functions.py, for hosts with a role of their own: they see all rows."""

from typing import Any

from django.db import connection


def ask(question: str, *arguments: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(question, arguments)
        return list(cursor.fetchall())

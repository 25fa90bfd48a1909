"""Whether the database is of this release: a release reads what older ones wrote, and nothing of a newer one."""

from django.db import connection
from django.db.migrations.loader import MigrationLoader

APP = "web"


class NewerDatabase(Exception):
    """The database is of a newer release; the message says what to do."""


class OlderDatabase(Exception):
    """The database has not been brought up to this release; the message says what to do."""


def missing() -> list[str]:
    """The names of the changes that this release knows and the database does not have. Raises DatabaseError."""
    loader = MigrationLoader(connection)
    return sorted(name for app, name in {*loader.disk_migrations} - {*loader.applied_migrations} if app == APP)


def is_new() -> bool:
    """Whether nothing of ours was ever in the database. Raises DatabaseError."""
    return not any(app == APP for app, _ in MigrationLoader(connection).applied_migrations)


def newer_than_we() -> list[str]:
    """The names of the changes that the database has and this release does not know. Raises DatabaseError."""
    loader = MigrationLoader(connection)
    return sorted(name for app, name in {*loader.applied_migrations} - {*loader.disk_migrations} if app == APP)


def refuse_newer() -> None:
    """Before anything is read or written. Raises NewerDatabase or DatabaseError."""
    if newer := newer_than_we():
        raise NewerDatabase(
            f"The database is of a newer release (it has {', '.join(newer)}), which this one would read wrongly. "
            "Nothing was changed. Install that release again, or a newer one; to go back, restore a backup made before "
            "the upgrade."
        )


def refuse_older() -> None:
    """Raises OlderDatabase or DatabaseError."""
    if changes := missing():
        raise OlderDatabase(
            f"The database is of an older release (it lacks {', '.join(changes)}). Run `manage.py migrate` on the host "
            "of the web side, with this release, and start again."
        )


def last_change() -> str:
    """The name of the last change of the database that this program knows."""
    return max(name for app, name in MigrationLoader(None).disk_migrations if app == APP)

import os
from pathlib import Path
from typing import Any, Self

from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError
from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3.client import DatabaseClient
from django.db.backends.sqlite3.schema import DatabaseSchemaEditor

from appliance.database import Writer, writer, writer_of
from appliance.sqlite_by_owner.connection import Connection, Cursor


class Client(DatabaseClient):
    def runshell(self, parameters: Any) -> None:
        if self.connection.by_owner:  # type: ignore[attr-defined]
            raise CommandError("Another user can write the folder of the database, so root does not open it with "
                               "sqlite3. Do so as the owner of that folder.")  # fmt: skip
        super().runshell(parameters)


class ConvertingCursor(Cursor):
    """With the parameters of Django, as its own cursor."""

    convert_query: Any = base.SQLiteCursorWrapper.convert_query

    def execute(self, sql: str, parameters: Any = None) -> Cursor:
        if parameters is None:
            return super().execute(sql)
        names = list(parameters) if isinstance(parameters, dict) else None
        return super().execute(self.convert_query(sql, param_names=names), parameters)

    def executemany(self, sql: str, parameters: Any) -> Cursor:
        all_ = list(parameters)
        names = list(all_[0]) if all_ and isinstance(all_[0], dict) else None
        return super().executemany(self.convert_query(sql, param_names=names), all_)


class SchemaEditor(DatabaseSchemaEditor):
    """Around each migration, also one that moves data."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._take_long(True)
        return self

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        finally:
            self._take_long(False)

    def _take_long(self, may: bool) -> None:
        if isinstance(self.connection.connection, Connection):
            self.connection.connection.migrates = may


class DatabaseWrapper(base.DatabaseWrapper):
    client_class = Client
    SchemaEditorClass = SchemaEditor

    @property
    def by_owner(self) -> Writer | None:
        """As whom the database has to be opened; None: as who this process is."""
        if os.geteuid() or self.is_in_memory_db():
            return None
        return writer_of(Path(self.settings_dict["NAME"]).absolute().parent)

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        if os.geteuid() or self.is_in_memory_db():
            return super().get_new_connection(conn_params)
        path = Path(conn_params["database"]).absolute()
        try:
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self.Database.OperationalError(f"unable to open {path.parent}: {error.strerror}") from None
        try:
            owner = writer(folder)
            if owner is None:
                return super().get_new_connection(conn_params)
            connection = Connection(folder, path.name, owner.uid, owner.gid, conn_params.get("timeout", 5.0))
        except ImproperlyConfigured as error:
            raise self.Database.OperationalError(str(error)) from None
        finally:
            os.close(folder)
        commands: list[str] = self.init_commands  # type: ignore[attr-defined]
        try:
            for command in ("PRAGMA foreign_keys = ON", "PRAGMA legacy_alter_table = OFF", *commands):
                if command.strip():
                    connection.execute(command.strip())
        except BaseException:
            connection.close()
            raise
        return connection

    def create_cursor(self, name: str | None = None) -> Any:
        if isinstance(self.connection, Connection):
            return ConvertingCursor(self.connection)
        return super().create_cursor(name)

    def is_usable(self) -> bool:
        return not (isinstance(self.connection, Connection) and self.connection.lost)

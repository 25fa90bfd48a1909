"""A plugin of pytest (`-p`): the tests' database lies in a folder of the web user, so root opens it by a helper."""

import os
from pathlib import Path

import pytest

from appliance.running import web_user


def pytest_sessionstart() -> None:
    from django.db import connection

    folder = Path(os.environ["GPUSHARE_HOME"], "by-owner")
    folder.mkdir()
    os.chown(folder, web_user.UNUSED, web_user.UNUSED)
    folder.chmod(0o2770)
    connection.settings_dict["TEST"]["NAME"] = str(folder / "test.sqlite3")


@pytest.fixture(autouse=True)
def is_by_owner(request: pytest.FixtureRequest) -> None:
    if "db" in request.fixturenames or "transactional_db" in request.fixturenames:
        from django.db import connection

        request.getfixturevalue("db" if "db" in request.fixturenames else "transactional_db")
        assert connection.by_owner  # type: ignore[attr-defined]
        connection.ensure_connection()
        assert type(connection.connection).__module__ == "appliance.sqlite_by_owner.connection"

"""A database in a folder that belongs to the web user, as `up` leaves it when root starts it."""

import os
import struct
import subprocess
import sys
from pathlib import Path

from appliance.running import web_user
from tests.support.own_home import OWNED
from tests.support.tables import ROOT, begin_with_tables

WEB_USER = web_user.WebUser("web", web_user.UNUSED, web_user.UNUSED)
MAGIC = bytes.fromhex("d9d505f920a163d7")  # of a journal, at its begin and after the name of a super-journal


def home(folder: Path) -> tuple[Path, Path]:
    """A GPUSHARE_HOME and its database, which has its tables."""
    made = folder / "home"
    begin_with_tables(database := made / "database" / "gpushare.sqlite3")
    (made / OWNED).touch()
    web_user.share(made, WEB_USER)
    return made, database


def root(home: Path, program: str, *words: str, **environ: str) -> subprocess.Popen[str]:
    """A program in Python with Django and the settings of this home, which talks by lines."""
    given = {**os.environ, "GPUSHARE_HOME": str(home), "DJANGO_SETTINGS_MODULE": "appliance.settings", **environ}
    given.pop("DATABASE_URL", None)
    return subprocess.Popen(
        [sys.executable, "-c", f"import django; django.setup()\n{program}", *words],
        cwd=ROOT, env=given, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def as_web_user(database: Path, command: str, given: bytes = b"") -> None:
    """Somebody who has got into the web process does this, in the folder of the database."""
    subprocess.run(["sh", "-c", command], cwd=database.parent, user=WEB_USER.uid, group=WEB_USER.gid, extra_groups=[],
                   input=given, check=True)  # fmt: skip


def hot_journal(victim: Path, size: int) -> bytes:
    """A journal whose transaction belongs to a super-journal of this name, which SQLite deletes after the rollback.

    `size`: of the database, in pages.
    """
    name = os.fsencode(victim)
    header = MAGIC + struct.pack(">IIIII", 0, 0, size, 512, 4096)
    checked = sum(byte if byte < 128 else byte - 256 for byte in name) & 0xFFFFFFFF
    return header.ljust(512, b"\0") + struct.pack(">I", 0) + name + struct.pack(">II", len(name), checked) + MAGIC

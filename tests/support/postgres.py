"""A PostgreSQL server of the test's own, from the distribution's packages."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_FOUND = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
BIN = _FOUND[-1].parent if _FOUND else None


@contextmanager
def running_postgres() -> Iterator[str]:
    """Its DATABASE_URL. The server refuses to run as root: then it runs as the package's user."""
    assert BIN is not None
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    with TemporaryDirectory(prefix="pg-", dir="/tmp") as folder, socket.socket() as free:
        shutil.chown(folder, user)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        data, log = f"{folder}/data", f"{folder}/log"
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        _run(user, "initdb", "-D", data, "-A", "trust", "-U", "gpushare")
        _run(user, "pg_ctl", "-D", data, "-o", options, "-l", log, "-w", "start")
        try:
            yield f"postgres://gpushare@127.0.0.1:{port}/postgres"
        finally:
            _run(user, "pg_ctl", "-D", data, "-m", "fast", "-w", "stop")


def _run(user: str, program: str, *arguments: str) -> None:
    assert BIN is not None
    as_user = user if os.geteuid() == 0 else None
    subprocess.run([BIN / program, *arguments], check=True, stdout=subprocess.DEVNULL, user=as_user, cwd="/")

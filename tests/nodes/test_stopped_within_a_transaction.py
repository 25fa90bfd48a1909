"""A scheduler that stands still within a transaction keeps its node's row, but not for ever."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psycopg

from scheduler.store.database import IDLE
from tests.support.appliance import ROOT, until
from tests.support.cluster import Cluster
from web.models.hosts import LAPSES

STOPS = textwrap.dedent("""
    import asyncio, os, signal
    from django.db import transaction
    from scheduler.store import node_lease
    from scheduler.store.database import Database, Here
    from web.models import Node

    def hold():
        node, _ = Node.objects.get_or_create(name="hangs", defaults={"holder": "us"})
        with transaction.atomic():
            node_lease.require(Here(node.pk, "us"))
            print("holds it", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    asyncio.run(Database().ask(hold))
""")


def test_its_row_is_free_before_its_name_is(cluster: Cluster) -> None:
    assert LAPSES.total_seconds() > IDLE
    environ = cluster.environ("web", GPUSHARE_HOME=str(Path(cluster.folder) / "hangs"))
    words = [sys.executable, "manage.py", "shell", "-c", STOPS]
    stopped = subprocess.Popen(words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert stopped.stdout is not None
        assert b"holds it\n" in iter(stopped.stdout.readline, b"")
        until(lambda: Path(f"/proc/{stopped.pid}/stat").read_text().split(")")[1].split()[0] == "T")
        with psycopg.connect(cluster.postgres.url) as database:
            database.execute(f"SET lock_timeout = '{2 * LAPSES.seconds}s'")
            database.execute("SELECT FROM web_node WHERE name = 'hangs' FOR UPDATE")
            database.execute("DELETE FROM web_node WHERE name = 'hangs'")
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.kill()
        stopped.wait()
        assert stopped.stdout is not None
        stopped.stdout.close()

"""What depends on the database holds on PostgreSQL too: the same tests, in a run of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres import BIN, running_postgres

HERE = Path(__file__).parent
# What sums history up in the database, or counts on its locks and constraints; then those that read it, ask and refuse.
SHOWN = ["test_accept_placement", "test_allowances", "test_audit", "test_many_nodes", "test_reports",
         "test_reservations", "test_rollup"]  # fmt: skip
LONG = ["test_admin", "test_audit_page", "test_booked_killed", "test_hostile_launches", "test_launching",
        "test_looking", "test_me", "test_one_reading", "test_peaks", "test_people", "test_planning",
        "test_response_cache", "test_runs", "test_steering", "test_tokens"]  # fmt: skip


@pytest.mark.production
@pytest.mark.timeout(1200)  # up to fifteen files of tests, on a machine that may be busy
@pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL")
@pytest.mark.parametrize("names", [SHOWN, pytest.param(LONG, marks=pytest.mark.long)], ids=["history", "views"])
def test_the_web_side_works_on_postgresql(names):
    files = [str(HERE / f"{name}.py") for name in names]
    with running_postgres() as postgres:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
            env={**os.environ, "DATABASE_URL": postgres.url},
            cwd=HERE.parent.parent,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout

"""What depends on the database holds on PostgreSQL too: the same tests, in a run of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres import BIN, running_postgres

HERE = Path(__file__).parent
FILES = ["test_admin", "test_admin_rules", "test_allowances", "test_audit", "test_audit_page",
         "test_hostile_launches", "test_launching", "test_looking", "test_many_nodes", "test_me",
         "test_one_reading", "test_peaks", "test_people", "test_reports",
         "test_rollup", "test_rows", "test_steering", "test_tokens"]  # fmt: skip


@pytest.mark.production
@pytest.mark.timeout(300)
@pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL")
def test_the_web_side_works_on_postgresql():
    with running_postgres() as postgres:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                *(str(HERE / f"{name}.py") for name in FILES),
            ],
            env={**os.environ, "DATABASE_URL": postgres.url},
            cwd=HERE.parent.parent,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout

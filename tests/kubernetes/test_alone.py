"""A driver without a setting that says where the web side's database is."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.host import ROOT


def test_a_driver_without_a_database_of_a_web_sides_ends_with_what_is_missing(tmp_path: Path) -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("DATABASE_", "GPUSHARE_"))}
    done = subprocess.run(
        [sys.executable, "manage.py", "runkubernetes"],
        cwd=ROOT,
        env={**known, "GPUSHARE_HOME": str(tmp_path), "GPUSHARE_KUBERNETES_API": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "DATABASE_URL is not set" in done.stderr
    assert "gpushare.env" in done.stderr

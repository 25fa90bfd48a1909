"""Runs the command line as a person does: the installed entry point in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.eventually import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
# As from a person's shell, which takes Ctrl-C: what a script starts in the background inherits that it is ignored.
CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
# A late answer of a busy machine is no remark on standard error.
PATIENT = f"attach.GLANCE = {PATIENCE}"
ENTRY = [sys.executable, "-W", "error", "-c", f"{CTRL_C}; from appliance.cli import attach, main; {PATIENT}; main()"]


def environment(given=None):
    """This one's, less what could lead to an appliance of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_")}
    kept |= {
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        "GPUSHARE_CONFIG": "/nonexistent",
        "GPUSHARE_HOME": "/nonexistent",
    }
    return kept | (given or {})


def gpushare(*words, environ=None, stdin="", timeout=60):
    return subprocess.run(
        [*ENTRY, *words],
        env=environment(environ),
        input=stdin,
        text=True,
        capture_output=True,
        timeout=timeout,
        cwd="/",
    )

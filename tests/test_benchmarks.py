"""Benchmarks run by hand, and seldom: that each can still be started is seen here."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import HELPERS

ROOT = Path(__file__).parents[1]


def test_each_benchmark_is_imported_as_it_is_when_it_is_run_without_settings() -> None:
    """Those that need Django set it up themselves, once they have said where its home is."""
    found = pkgutil.walk_packages([str(ROOT / "benchmarks")], "benchmarks.")
    names = [each.name for each in found if each.name.removeprefix("benchmarks.") not in HELPERS]
    assert "benchmarks.docker_launch" in names
    forked = (
        "import importlib, os, sys, traceback\n"
        "for name in sys.argv[1:]:\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        importlib.import_module(name)\n"
        "        os._exit(0)\n"
        "    if os.waitpid(pid, 0)[1]:\n"
        "        print(name)\n"
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")}
    words = [sys.executable, "-c", forked, *names]
    done = subprocess.run(words, cwd=ROOT, env=bare, capture_output=True, text=True, check=True)
    assert done.stdout == "", done.stderr

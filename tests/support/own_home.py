"""A `GPUSHARE_HOME` of the tests' own, made before Django reads its settings (pyproject.toml: `-p`).

The checkout's `./var` belongs to the person who runs the tests: no test reads it or writes into it. Each process of a
run has a folder of its own, where databases of tests lie, and each test has a new folder in it (`tests/conftest.py`). A
run whose environment names a home or a database of somebody else stops with a sentence; other settings of theirs are
dropped.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWNED = "made-for-tests"  # the file that says so; a home without it belongs to somebody
CHECKOUT = ROOT / "var"
# What a tester says to the tests themselves, or to a simulated card; all else is about an appliance of theirs.
TO_TESTS = {"GPUSHARE_TEST_DURATIONS", "GPUSHARE_SCREENSHOTS", "GPUSHARE_STORM", "GPUSHARE_SIM"}


def refusal(environ: dict[str, str]) -> str:
    """Why tests may not begin in this environment; empty if they may."""
    home = environ.get("GPUSHARE_HOME")
    if home and Path(home, OWNED).exists():
        return ""  # a run that a test has begun, or a process of a run
    if home:
        return (
            f"GPUSHARE_HOME is {home}, which was not made for tests: tests would write into it. "
            "Unset GPUSHARE_HOME; each test makes one of its own."
        )
    if environ.get("DATABASE_URL"):
        return "DATABASE_URL names a database, and tests would write into it. Unset it; tests make their own."
    return ""


def clean_environ() -> dict[str, str]:
    """For an appliance of a test: this process's environment without what could lead it elsewhere."""
    settings = ("GPUSHARE_", "DJANGO_", "DATABASE_URL", "REDIS_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(settings)}


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Of each file below it: when it was written (ns), and its bytes."""
    if not folder.is_dir():
        return {}
    found = ((path, path.lstat()) for path in sorted(folder.rglob("*")) if not path.is_dir())
    return {str(path.relative_to(folder)): (status.st_mtime_ns, status.st_size) for path, status in found}


def new_folder() -> Path:
    """Of a test, or of a process of the run; short, since sockets lie in it."""
    return Path(tempfile.mkdtemp(dir=os.environ["GPUSHARE_HOME"]))


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the whole run: `make` fills it for the first of its processes that asks."""
    folder = SHARED / name
    with (SHARED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begun = Path(tempfile.mkdtemp(dir=SHARED))
            make(begun)
            begun.rename(folder)
    return folder


def _begin() -> Path:
    """The folder of the process that has begun the run: of this one, or of the one that it is a worker of."""
    if problem := refusal(dict(os.environ)):
        raise pytest.UsageError(problem)
    if not os.environ.get("GPUSHARE_HOME"):  # else a test has begun this process, and given it what it is to have
        for name in {each for each in os.environ if each.startswith(("GPUSHARE_", "REDIS_URL"))} - TO_TESTS:
            del os.environ[name]
    first = os.environ.get("GPUSHARE_HOME") if "PYTEST_XDIST_WORKER" in os.environ else None
    made = Path(tempfile.mkdtemp(prefix="gps-"))
    atexit.register(_remove, made, os.getpid())
    made.chmod(0o755)  # tests that run as somebody else find what lies in it
    (made / OWNED).touch()
    os.environ["GPUSHARE_HOME"] = str(made)
    return Path(first) if first else made


def _remove(made: Path, owner: int) -> None:
    """Not in a process that was forked: Python 3.13 runs or drops there what was registered for the end."""
    if os.getpid() == owner:
        shutil.rmtree(made, ignore_errors=True)


SHARED = _begin()


class Untouched:
    """In CI nothing runs but tests and checks, which leave `./var` alone: whatever changes, one of them changed."""

    def __init__(self) -> None:
        self.before = state(CHECKOUT)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        after = state(CHECKOUT)
        if changed := sorted(name for name in {*self.before, *after} if self.before.get(name) != after.get(name)):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR  # which no second run of a test makes good
            print(f"\nThe tests changed the checkout's own data in {CHECKOUT}: {', '.join(changed)}")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Untouched())

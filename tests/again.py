"""`make test` for CI: what failed runs once more, alone (`python -m tests.again PYTEST-ARGUMENTS`).

A test that fails twice is a failure. One that passes the second time is flaky: its name is printed as `FLAKY: name` and
added to `tests/flaky.txt`, the list of those to be mended first. More than `MOST` such names, or more failures than
that in a run, are a failure: then it is not chance, or nobody mends.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.recorded import PLACE

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "flaky.txt"
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
MOST = 10
ALONE = ("-n", "0", "-p", "no:cacheprovider")
SOME_FAILED = 1  # pytest's exit code for "tests ran, some failed"


def pytest(*words: str) -> int:
    """What runs once more, alone, does not take the place of the whole run in the record of durations."""
    alone = words[: len(ALONE)] == ALONE
    environ = {name: value for name, value in os.environ.items() if not (alone and name == PLACE)}
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environ).returncode


def failed() -> list[str]:
    """Of the last run, by pytest's own record; a file that could not be imported stands there as itself."""
    return sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []


def known(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def run(arguments: Sequence[str], play: Callable[..., int] = pytest, file: Path = LIST) -> int:
    """The exit code: pytest's, or 0 where all that failed passed when it ran alone."""
    FAILED.unlink(missing_ok=True)  # of an earlier run
    code = play(*arguments)
    names = failed()
    if code != SOME_FAILED or not names:
        return code
    if len(names) > MOST:
        print(f"{len(names)} tests failed: more than {MOST} are not run again.")
        return code
    twice = [name for name in names if play(*ALONE, name) != 0]
    flaky = sorted({*known(file), *(name for name in names if name not in twice)})
    file.write_text("".join(f"{name}\n" for name in flaky))
    for name in names:
        print(f"FAILED TWICE: {name}" if name in twice else f"FLAKY: {name}")
    if len(flaky) > MOST:
        print(f"{file.name} lists {len(flaky)} flaky tests; {MOST} are the most. Mend some of them first.")
    return code if twice or len(flaky) > MOST else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

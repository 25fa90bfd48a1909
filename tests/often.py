"""Runs tests many times beside a load, so that one that knows how fast the machine is shows itself.

    python -m tests.often TESTS            20 times, until one fails; `make flaky TESTS=…`
    python -m tests.often --changed        the test files that the last change touches, within five minutes; `.ci/run`

The exit code is 1 if a test failed; with --changed only if it fails without the load, too, as in `tests.again`: else it
is printed as FLAKY, to be mended first. Once time is over no further run begins, and it says how often they passed: who
waits for ever is what is looked for, and is ended by pytest's limits, as a failure.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMES = 20
LOAD = 4  # processes that compute
WITHIN = 300.0  # seconds for what a change touches
# Ends with whoever started it.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
NO_TESTS = 5  # pytest's exit code where all were left out


@contextmanager
def load() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(LOAD):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(process.kill)
        yield


def changed(root: Path = ROOT) -> list[str]:
    """Test files that differ from where this branch left `origin`, or, where nothing does, from the commit before."""
    for base in ("origin/HEAD", "origin/main", "HEAD~1"):
        words = ["git", "diff", "--name-only", "--diff-filter=AMR", f"{base}...HEAD", "--", "tests"]
        said = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout:
            return [name for name in said.stdout.splitlines() if Path(name).match("test_*.py")]
    return []


def pytest(test: str) -> int:
    """The exit code."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test], cwd=ROOT
    ).returncode


def run(tests: Sequence[str], within: float = float("inf"), times: int = TIMES) -> int:
    """Each file in its turn, so that a time limit leaves none out for the sake of another."""
    failed = _beside_load(tests, within, times)
    if not failed:
        return 0
    if within < float("inf") and pytest(failed) == 0:
        print(f"FLAKY: {failed}")
        return 0
    return 1


def _beside_load(tests: Sequence[str], within: float, times: int) -> str:
    """The first that fails; empty if none does."""
    end, passed = time.monotonic() + within, 0
    with load():
        for number in range(times):
            for test in tests:
                if time.monotonic() >= end:
                    print(
                        f"Time is over: all of {len(tests)} passed {passed} times of {times} beside a load of {LOAD}."
                    )
                    return ""
                code = pytest(test)
                if code not in (0, NO_TESTS):
                    print(f"FLAKY, or broken: {test} failed in run {number + 1} of {times} beside a load of {LOAD}.")
                    return test
            passed += 1
    print(f"{len(tests)} passed {passed} times beside a load of {LOAD}.")
    return ""


if __name__ == "__main__":
    asked = sys.argv[1:] or ["tests"]
    if asked == ["--changed"]:
        sys.exit(run(changed(), WITHIN))
    sys.exit(run(asked))

"""Runs tests many times beside a load, so that one that knows how fast the machine is shows itself.

    python -m tests.often TESTS            20 times, until one fails; `make flaky TESTS=…`
    python -m tests.often --changed        the test files that the last change touches, within five minutes; `.ci/run`

The exit code is 1 if a test failed; with --changed only if it fails without the load, too, as in `tests.again`: else it
is printed as FLAKY, to be mended first. Time that is over is no failure: then it says how often they passed.
"""

import signal
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
ENDS_WITHIN = 60.0  # seconds for a run that is interrupted to take down what it has started
# Ends with whoever started it.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
# It takes Ctrl-C: what a script starts in the background inherits that it is ignored.
PYTEST = (
    "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.exit(pytest.main(sys.argv[1:]))"
)
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


def pytest(tests: Sequence[str], within: float) -> int | None:
    """pytest's exit code, or None if so many seconds were not enough."""
    words = [sys.executable, "-c", PYTEST, "-q", "-x", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(words, cwd=ROOT) as process:
        try:
            return process.wait(within)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
        return None


def run(tests: Sequence[str], within: float = float("inf"), times: int = TIMES) -> int:
    """Each file in its turn, so that a time limit leaves none out for the sake of another."""
    failed = _beside_load(tests, within, times)
    if not failed:
        return 0
    if within < float("inf") and pytest([failed], 10 * 3600) == 0:
        print(f"FLAKY: {failed}")
        return 0
    return 1


def _beside_load(tests: Sequence[str], within: float, times: int) -> str:
    """The first that fails; empty if none does."""
    end, passed = time.monotonic() + within, 0
    with load():
        for number in range(times):
            for test in tests:
                left = end - time.monotonic()
                code = pytest([test], left if left < float("inf") else 10 * 3600) if left > 0 else None
                if code is None:
                    print(
                        f"Time is over: all of {len(tests)} passed {passed} times of {times} beside a load of {LOAD}."
                    )
                    return ""
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

"""What a run leaves in the file `GPUSHARE_TEST_DURATIONS` names: seconds, of these the set-up's, and name of each test.

The slowest come first. `.ci/run` names such a file, so that the question where the time goes has an answer after every
run; `python -m tests.slow` decides by one what waits for `make test-all`. What a module shares is in the set-up of the
test that ran first.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest

PLACE = "GPUSHARE_TEST_DURATIONS"


class Durations:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.seconds: dict[str, float] = defaultdict(float)
        self.setup: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.when == "setup":
            self.setup[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        slowest = sorted(self.seconds.items(), key=lambda item: -item[1])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(f"{seconds:9.3f} {self.setup[name]:9.3f} {name}\n" for name, seconds in slowest))


def pytest_configure(config: pytest.Config) -> None:
    if (place := os.environ.get(PLACE)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(Path(place)))

"""How far the property tests go: in the suite at least 10,000 steps; with `--hypothesis-profile=long`, a million.

The suite takes the same steps each time, so that it is not by chance that it fails; the long ones are others each time.
"""

import pytest
from hypothesis import HealthCheck, settings

for name, examples, steps in (("suite", 250, 60), ("long", 10_000, 100)):
    settings.register_profile(
        name,
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=name == "suite",
        suppress_health_check=list(HealthCheck),
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(config.getoption("hypothesis_profile") or "suite")

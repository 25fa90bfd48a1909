"""What holds for every test.

How far the property tests go: in the suite at least 10,000 steps; with `--hypothesis-profile=long`, a million. The
suite takes the same steps each time, so that it is not by chance that it fails, nor by how busy the machine is; the
long ones are others each time.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping

import pytest
from asgiref.sync import SyncToAsync
from django.db import connections
from hypothesis import HealthCheck
from hypothesis import settings as properties
from pytest_django import Settings

from tests.support import own_home
from tests.support.inprocess.clockwork import VirtualLoop

pytest_plugins = ["tests.support.inprocess.host"]

for name, examples, steps in (("suite", 250, 60), ("long", 10_000, 100)):
    properties.register_profile(
        name,
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=name == "suite",
        suppress_health_check=list(HealthCheck),
    )


def pytest_configure(config: pytest.Config) -> None:
    properties.load_profile(config.getoption("hypothesis_profile") or "suite")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A test that asks for `virtual_time`, or for what is on it, runs on it."""
    virtual = "virtual_time" in getattr(item, "fixturenames", ())
    return {"virtual" if virtual else "real": VirtualLoop if virtual else asyncio.new_event_loop}


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the run: no later collection goes through them, 0.4 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def home_of_its_own(settings: Settings) -> None:
    """An empty `GPUSHARE_HOME`, until a fixture of the test chooses one that it knows."""
    settings.GPUSHARE_HOME = own_home.new_folder()


@pytest.fixture(autouse=True)
def queries_of_async_code_leave_no_connection() -> Iterator[None]:
    """Their thread is the next test's too; one that may ask no database would be refused there, out of its sight."""
    yield
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()

"""What holds for every test."""

import asyncio
import gc
from collections.abc import Callable, Mapping

import pytest
from pytest_django import Settings

from tests.support import own_home
from tests.support.inprocess.clockwork import VirtualLoop

pytest_plugins = ["tests.support.inprocess.host"]


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

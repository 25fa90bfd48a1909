"""What holds for every test."""

from __future__ import annotations

import gc

import pytest
from pytest_django import Settings

from tests.support import own_home


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the run: no later collection goes through them, 0.4 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def home_of_its_own(settings: Settings) -> None:
    """An empty `GPUSHARE_HOME`, until a fixture of the test chooses one that it knows."""
    settings.GPUSHARE_HOME = own_home.new_folder()

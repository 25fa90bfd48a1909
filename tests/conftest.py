"""What holds for every test."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the run: no later collection goes through them, 0.4 s each time."""
    gc.collect()
    gc.freeze()

"""The line of the log that says what this host has."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.host import a_host


@pytest.mark.parametrize(("gpus", "text"), [("sim:1x1GiB", "1 GPU"), ("sim:2x1GiB", "2 GPUs")])
async def test_so_many_gpus_in_english(
    transactional_db: None, settings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, gpus: str, text: str
) -> None:
    with caplog.at_level(logging.INFO, "scheduler.worker"):
        async with a_host(settings, tmp_path, gpus=gpus):
            pass
    assert f"the scheduler has started with process containers and {text}" in caplog.messages

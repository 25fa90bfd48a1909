"""This release's shim under the scheduler of release 0.1.0: it computes, gives back, and hears of its quota."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.card import BUILD, MIB, Card, card
from tests.upgrade.old_scheduler import VERSION, OldScheduler

__all__ = ["card"]


@pytest.fixture
def old(card: Card, tmp_path: Path) -> Iterator[OldScheduler]:
    (gpu,) = card.gpus()
    scheduler = OldScheduler(tmp_path, uuid.UUID(gpu["uuid"].removeprefix("GPU-")).bytes, 512 * MIB)
    yield scheduler
    scheduler.close()


def env(old: OldScheduler) -> dict[str, str]:
    return {"GPUSHARE_SOCKET": str(old.path), "LD_PRELOAD": str(BUILD / "libgpushare.so")}


def test_it_computes_within_its_quota_and_gives_all_of_it_back(card: Card, old: OldScheduler) -> None:
    done = card.run("--bytes", "300MiB", **env(old))
    assert done.returncode == 0, done.stderr
    assert "every byte is right" in done.stdout
    assert old.hellos == [VERSION]
    (page,) = old.pages
    assert old.used(page) == 0


def test_beyond_its_quota_it_is_rejected_in_words_that_it_understands(card: Card, old: OldScheduler) -> None:
    done = card.run("--bytes", "600MiB", **env(old))
    assert done.returncode != 0
    assert "out of memory" in (done.stdout + done.stderr).lower(), done.stdout + done.stderr
    (page,) = old.pages
    assert old.used(page) <= 512 * MIB

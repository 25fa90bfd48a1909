"""An image that nobody knew when its volume was mounted is held against its owner's allowance, come what may."""

import asyncio
import errno
import os
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError

from scheduler.plugin.folders import Folders
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import volumes
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from tests.support.people import make_user
from web.models import Allowance, Container, Node
from web.services import mounting

SEEN = {"name": "one", "image": "miner:latest", "command": ["dig"], "memory": None, "cpus": None}


@pytest.fixture
async def guessed(host: InProcess, settings: Any) -> Container:
    """What Docker has mounted, for one of several: which, is seen once it runs. Its owner may not have it."""
    settings.GPUSHARE_PLUGIN_PEOPLE = ["ada"]
    ada = await query(make_user, "ada")
    await query(Allowance.objects.create, user=ada, images=["ours/*"])
    node = await query(Node.objects.get)
    asked = mounting.Mounting(uuid4(), "m1", "guessed", "", (), GIB, list(host.up.gpus.cards))
    made: Container = await query(mounting.mount, node.pk, "v", {"gpu_memory": "1GiB"}, asked)
    await host.stop()
    return made


def live_container_of(host: InProcess, container: Container) -> LiveContainer:
    found = host.up.containers.find(str(container.pk))
    assert found is not None
    return found


async def test_the_database_was_away_when_it_was_seen(
    host: InProcess, guessed: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.start()
    known, failures = volumes._known, iter([OperationalError("away")])

    def failing(*arguments: Any) -> Any:
        for failure in failures:
            raise failure
        return known(*arguments)

    monkeypatch.setattr(volumes, "_known", failing)
    host.up.plugin.mounts._found_out(str(guessed.pk), SEEN)
    await host.eventually(lambda: live_container_of(host, guessed).killed)
    assert "You may not launch miner:latest" in live_container_of(host, guessed).reason


async def test_the_plugin_failed_and_began_again_while_the_database_was_away(
    host: InProcess, guessed: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the folders, and the host may have no descriptor left for that."""
    await host.start()
    require, left_by, away = volumes._require_image, Folders.left_by, [True]
    failed, looked = asyncio.Event(), asyncio.Event()

    def failing(*arguments: Any) -> Any:
        if away:
            raise OperationalError("away")
        return require(*arguments)

    def short(*arguments: Any) -> list[str]:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        looked.set()
        return left_by(*arguments)

    monkeypatch.setattr(volumes, "_require_image", failing)
    host.up.plugin.mounts._found_out(str(guessed.pk), SEEN)
    monkeypatch.setattr(Folders, "left_by", short)
    await host.eventually(looked.is_set)
    away.clear()
    await host.eventually(lambda: live_container_of(host, guessed).killed)


async def test_the_scheduler_was_killed_after_its_start_and_before_it_was_written_down(
    host: InProcess, guessed: Container
) -> None:
    await query(Container.objects.filter(pk=guessed.pk).update, started_at=guessed.created_at)
    await host.start()
    host.up.plugin.mounts._found_out(str(guessed.pk), SEEN)
    await host.eventually(lambda: live_container_of(host, guessed).killed)
    await host.eventually(lambda: not host.up.plugin.mounts._tasks)
    assert (await query(Container.objects.get, pk=guessed.pk)).image == "miner:latest"


async def test_what_is_known_of_one_that_had_started_is_not_written_again(host: InProcess, guessed: Container) -> None:
    """Its limit of host memory may have been raised for what was swapped."""
    known = {"started_at": guessed.created_at, "image": "ours/a", "memory": GIB}
    await query(Container.objects.filter(pk=guessed.pk).update, **known)
    await host.start()
    host.up.plugin.mounts._found_out(str(guessed.pk), SEEN | {"memory": 2 * GIB})
    await host.eventually(lambda: not host.up.plugin.mounts._tasks)
    found = await query(Container.objects.get, pk=guessed.pk)
    assert (found.image, found.memory) == ("ours/a", GIB)
    assert not live_container_of(host, guessed).killed

"""A scheduler works with the engine, the cards, the clock and the word of the kernel that it is given."""

import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from scheduler import clock, proc
from scheduler.engines.choose import choose
from scheduler.engines.runtime_environment import Simulation
from scheduler.gpus import Gpus
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host, a_host

DAY = 86400.0


class Tomorrow(clock.Source):
    def wall(self) -> float:
        return time.time() + DAY


class Listening(proc.Source):
    def __init__(self) -> None:
        self.peers: list[int] = []

    def peer(self, sock: socket.socket) -> proc.Peer:
        found = super().peer(sock)
        self.peers.append(found.pid)
        return found


@pytest.mark.django_db(transaction=True)
async def test_a_scheduler_works_with_what_it_is_given(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (clock, proc):
        monkeypatch.setattr(module, "_source", module.Source())
    settings.GPUSHARE_HOME, settings.GPUSHARE_ENGINE = tmp_path, "process"
    gpus, kernel = await Gpus.open("sim:1x5GiB", tmp_path, BUILD), Listening()
    assert gpus.simulation
    engine = await choose(Simulation(BUILD / "sim", gpus.simulation))

    class Given(Host):
        given = {"engine": engine, "gpus": gpus, "clock": Tomorrow(), "processes": kernel}

    async with a_host(settings, tmp_path, kind=Given) as host:
        assert (host.up.engine, host.up.gpus) == (engine, gpus)
        container = await host.launch("workload", "--bytes", "1GiB", "--hold", "600", gpu_memory=2 * GIB)
        live = host.up.broker.live_containers[str(container.pk)]
        await eventually(lambda: live.sessions)
        assert {session.pid for session in live.sessions.values()} <= set(kernel.peers)
        assert host.up.store.clocks.now(live.id) > timezone.now() + timedelta(seconds=DAY / 2)
        host.given = {}  # the next one, which ends what lives, is this machine's own
        await host.stop()

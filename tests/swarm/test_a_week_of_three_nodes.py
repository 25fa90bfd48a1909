"""A hundred launches by ten people on three nodes of a Swarm, to which all happens that happens to hosts."""

import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from tests.support.postgres import BIN as POSTGRES
from tests.support.redis_server import BIN as REDIS
from tests.support.swarm_lab import AWAY, why_no_lab
from tests.swarm.agreeing import Watch, agree, all_ended
from tests.swarm.three import CARDS, Three, three_nodes, until

pytestmark = [
    pytest.mark.docker,
    pytest.mark.production,
    pytest.mark.long,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(POSTGRES is None or REDIS is None, reason="needs the distribution's PostgreSQL and Redis"),
]

PEOPLE = [f"person{number}" for number in range(10)]
LAUNCHES = 100
ALLOWED = 3 << 30  # bytes of quota at once, each
# For an allowance; or while the only node with so large a card is away, drained, or not in the Swarm; or all of them,
# for a moment, as the Swarm has a new leader.
MAY_BE_REFUSED = ("over_allowance", "scheduler_away", "engine_away", "over_capacity", "node_draining", "node_away")
PATIENCE = 300.0  # seconds for what a busy machine makes of the longest step: a Swarm that finds its leader again


@pytest.fixture
def three() -> Iterator[Three]:
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with three_nodes() as made:
        yield made


class Launching:
    """Launches, one after the other as they are taken; a refusal is for an allowance, or because a node is away."""

    def __init__(self, three: Three, seed: int) -> None:
        self._three, self._random = three, random.Random(seed)
        self._people = itertools.cycle(PEOPLE)
        self.made: list[dict[str, Any]] = []
        self.refused: list[str] = []

    def some(self, count: int, most: int = 1500) -> None:
        """`most`: MiB, of the largest. Waits until all of them are taken."""
        for _ in range(count):
            person, mib = next(self._people), min(most, self._random.choice((200, 300, 450, 700, 900, 1500)))
            seconds = self._random.choice((0.5, 2, 5))
            launch = self._random.choice((self._within, self._within, self._within, self._beyond))
            until(lambda p=person, m=mib, s=seconds, what=launch: self._taken(what, p, m, s), PATIENCE, 1.0)

    def _within(self, person: str, mib: int, seconds: float) -> Any:
        return self._three.holding(mib, user=person, seconds=seconds, remove_when_done=True)

    def _beyond(self, person: str, mib: int, seconds: float) -> Any:
        return self._three.give("workload", "--bytes", f"{mib + 100}MiB", mib=mib, user=person,
                                remove_when_done=True)  # fmt: skip

    def _taken(self, launch: Callable[[str, int, float], Any], person: str, mib: int, seconds: float) -> bool:
        try:
            made = launch(person, mib, seconds)
            if "id" not in made:  # 202: it takes longer than who asks is to wait
                made = {"id": self._three.api("GET", f"commands/{made['command']}/")["container"]}
            self.made.append(made)
        except httpx.HTTPStatusError as error:
            said = error.response.json()
            if "error" not in said:  # a promise that was not kept
                said["error"] = self._three.api("GET", f"commands/{said['command']}/")
            code = said["error"]["code"]
            if code not in MAY_BE_REFUSED:
                raise
            self.refused.append(code)
            return False
        return True


def test_a_hundred_launches_by_ten_people_while_nodes_die_drain_and_join_again(three: Three) -> None:
    for person in PEOPLE:
        three.person(person)
        three.api("PATCH", f"people/{person}/allowance/", {"gpu_memory": ALLOWED})
    launching = Launching(three, seed=18)
    troubles = [engine_dies, scheduler_dies, both_die, network_is_cut, manager_is_restarted, node_is_drained]
    with Watch(three) as watch:
        fits_nowhere_then_starts(three)
        for trouble in troubles:
            launching.some(12)
            with trouble(three):
                launching.some(3, most=900)
            until(lambda: three.alive() >= set(CARDS), PATIENCE, 1.0)
        node_is_lost_and_joins_again(three, launching)
        launching.some(LAUNCHES - len(launching.made))
        until(lambda: all_ended(three), 2 * PATIENCE, 2.0)
    assert len(launching.made) == LAUNCHES
    assert watch.looks > LAUNCHES
    assert watch.faults == []
    ran = {three.container(each)["node"] for each in launching.made if three.container(each)["started_at"]}
    assert ran == set(CARDS)
    agree(three)


def fits_nowhere_then_starts(three: Three) -> None:
    holds = three.holding(1900, name="holds")
    three.until_it_is(holds, "running")
    waits = three.give("true", mib=1900, name="waits")
    until(lambda: "insufficient resources" in three.container(waits)["queue_reason"], PATIENCE, 1.0)
    three.api("POST", f"containers/{holds['id']}/kill/", {})
    assert three.until_it_is(waits, "exited")["node"] == "node2"


@contextmanager
def engine_dies(three: Three) -> Iterator[None]:
    three.kill_engine("node2")
    yield
    three.member("node2").start()


@contextmanager
def scheduler_dies(three: Three) -> Iterator[None]:
    three.kill("node3")
    yield
    three.start("node3")


@contextmanager
def both_die(three: Three) -> Iterator[None]:
    three.kill("node3")  # first: one that is only starting would end by itself without its engine
    three.kill_engine("node3")
    yield
    with ThreadPoolExecutor(1) as beside:  # each waits for the other: Docker asks for the volumes of what it kept
        back = beside.submit(three.member("node3").start)
        until(three.member("node3").has_begun, PATIENCE)
        three.start("node3")
        back.result()


@contextmanager
def network_is_cut(three: Three) -> Iterator[None]:
    three.member("node2").cut()
    until(lambda: not three.is_alive("node2"), PATIENCE, 1.0)
    yield
    three.member("node2").mend()


@contextmanager
def manager_is_restarted(three: Three) -> Iterator[None]:
    """The engine of the node that speaks for the Swarm."""
    three.member("node1").stop()
    three.member("node1").start()
    yield


@contextmanager
def node_is_drained(three: Three) -> Iterator[None]:
    three.api("POST", "nodes/node3/drain/", {})
    until(lambda: availability(three, "node3") == "pause", PATIENCE, 1.0)
    before = {*three.services(), *three.of_launches("node3")}  # some of them end meanwhile, and are removed
    yield
    assert set(three.of_launches("node3")) <= before
    three.api("POST", "nodes/node3/undrain/", {})
    until(lambda: availability(three, "node3") == "active", PATIENCE, 1.0)


def availability(three: Three, name: str) -> str:
    with suppress(*AWAY):
        return three.availability(name)
    return ""


def node_is_lost_and_joins_again(three: Three, launching: Launching) -> None:
    """For good, as far as anybody can see: what it held is lost with it. Then its host comes back, as another."""
    held = three.holding(1800, name="lost")
    until(lambda: three.container(held)["node"] == "node2" and three.container(held)["state"] == "running", PATIENCE, 1)
    three.kill("node2")
    until(lambda: not three.is_alive("node2"), PATIENCE, 1.0)
    refused = three.remove("node2")
    assert refused.returncode == 1
    assert "lost" in refused.stderr
    three.kill_engine("node2")
    assert three.remove("node2", "--force").returncode == 0
    lost = three.container(held)
    assert (lost["state"], lost["reason"]) == ("failed", "Lost with its node.")
    launching.some(3, most=900)
    three.swarm.expel("node2", by=three.member("node1"))
    three.member("node2").start()
    three.member("node2").api.leave_swarm(force=True)
    three.swarm.join(three.member("node2"), by=three.member("node1"))
    three.join("node2")
    three.start("node2")
    until(lambda: three.is_alive("node2"), PATIENCE, 1.0)

"""Three engines, three schedulers, one Swarm, one database; test_a_week_of_three_nodes.py shows it at length."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import BIN as POSTGRES
from tests.support.redis_server import BIN as REDIS
from tests.support.swarm_lab import why_no_lab
from tests.swarm.agreeing import Watch, agree, all_ended
from tests.swarm.three import CARDS, SETTLES, Three, three_nodes, until

pytestmark = [
    pytest.mark.long,  # nine servers at once: on two cores with other work a launch took two minutes
    pytest.mark.docker,
    pytest.mark.production,
    pytest.mark.timeout(600),
    pytest.mark.skipif(POSTGRES is None or REDIS is None, reason="needs the distribution's PostgreSQL and Redis"),
]


@pytest.fixture(scope="module")
def three() -> Iterator[Three]:
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with three_nodes() as made:
        yield made


def test_launches_go_where_swarm_has_room_and_the_death_of_a_node_is_outlived(three: Three) -> None:
    for name, allowed in {"ann": 5, "bob": 3}.items():
        three.person(name)
        three.api("PATCH", f"people/{name}/allowance/", {"gpu_memory": allowed << 30})
    with Watch(three) as watch:
        large = three.holding(1900, user="ann", name="large")
        small = [three.holding(900, user="bob", name=f"small-{number}") for number in range(3)]
        too_much = three.give("workload", "--bytes", "400MiB", mib=300, user="ann", name="too-much")
        ran = [three.until_it_is(each, "running") for each in (large, *small)]
        assert {each["node"] for each in ran} == set(CARDS)
        assert {each["node_reason"] for each in ran} == {"Placed by Swarm."}
        assert three.ask("POST", "containers/", {"image": "x", "gpu_memory": "1GiB"}, "bob").status_code == 403

        # Nothing fits now: this one and what wanted too much, which is known once it has room, wait.
        waits = three.give("true", mib=1900, user="ann", name="waits")
        reason = until(lambda: three.container(waits)["queue_reason"], SETTLES, 0.5)
        assert "insufficient resources on 3 nodes" in reason
        # On the node with one card: each waits for a card by its number, and node3 has another one.
        on_first = next(each for each in ran if each["node"] == "node1")
        three.api("POST", f"containers/{on_first['id']}/kill/", {})
        assert three.until_it_is(too_much, "failed")["exit_code"] == 2

        three.kill("node3")
        three.kill_engine("node2")
        three.member("node2").start()
        three.start("node3")
        assert "killed by" not in three.until_it_is(large, "failed")["reason"].lower()
        assert three.until_it_is(waits, "exited")["node"] == "node2"
        until(lambda: three.alive() >= set(CARDS), SETTLES, 0.5)
        three.end_all()
        until(lambda: all_ended(three), SETTLES, 0.5)
        three.api("POST", "nodes/node3/drain/", {})
        until(lambda: three.availability("node3") == "pause", SETTLES, 0.5)
        assert three.until_it_is(three.give("true", mib=900, user="bob"), "exited")["node"] != "node3"
        three.api("POST", "nodes/node3/undrain/", {})
        until(lambda: three.availability("node3") == "active", SETTLES, 0.5)
    assert watch.looks > 5
    assert watch.faults == []
    agree(three)

"""Which cards a launch reserves in a Swarm, and what is refused before anything is asked of it."""

import json
from dataclasses import replace

import pytest

from scheduler.containers.placement import as_asked, choose_host
from scheduler.engines.placer import Host
from scheduler.engines.swarm import kinds
from scheduler.engines.swarm.manager import with_what_comes
from web.errors import Problem

GIB = 1 << 30
MIB = 1 << 20
SMALL = Host("small", {0: 2 * GIB}, {})
TWO = Host("two", {0: 8 * GIB, 1: 8 * GIB}, {0: 6 * GIB, 1: GIB})


def refused(*hosts: Host, size: int = GIB, count: int = 1, **wanted: list[int]) -> Problem:
    with pytest.raises(Problem) as caught:
        choose_host(hosts, size, count, wanted)
    return caught.value


def test_of_a_nodes_cards_those_with_most_room_are_reserved_and_the_node_is_left_to_swarm() -> None:
    assert choose_host([SMALL, TWO], 2 * GIB, 1, {}) == ("", [1])
    assert choose_host([SMALL, TWO], 2 * GIB, 2, {}) == ("", [0, 1])


def test_what_is_on_its_way_to_a_node_is_reserved_where_there_is_most_room_for_it() -> None:
    """Orders that came at once were all given the number of one card: the last waited, beside another that was free."""
    hosts = [Host("one", {0: GIB}, {}), Host("large", {0: 2 * GIB}, {}), Host("two", {0: GIB, 1: GIB}, {})]
    found, chosen = hosts, []
    for size in (1900 * MIB, 900 * MIB, 900 * MIB, 900 * MIB):
        _, (card,) = choose_host(found, size, 1, {})
        chosen.append({card: size})
        found = with_what_comes(list(hosts), chosen)
    assert [list(each) for each in chosen] == [[0], [0], [0], [1]]
    assert hosts[0].reserved == {}, "what is counted is one look's"
    unchanged = with_what_comes([replace(SMALL, there=False), TWO], [{0: 2 * GIB + 1}, {7: 1}, {}])
    assert [host.reserved for host in unchanged] == [{}, TWO.reserved]


def test_what_fits_on_no_card_now_is_asked_for_all_the_same() -> None:
    assert choose_host([TWO], 8 * GIB, 1, {}) == ("", [1])


def test_cards_that_are_named_name_their_node() -> None:
    assert choose_host([SMALL, TWO], GIB, 1, {"two": [0]}) == ("two", [0])
    problem = refused(SMALL, two=[0])
    assert (problem.code, problem.status, problem.field) == ("node_away", 503, "gpus")
    assert problem.retry_after, "a program may ask again, as of each node that is away"
    assert refused(SMALL, TWO, two=[0], small=[0]).code == "gpus_apart"
    assert refused(SMALL, size=3 * GIB, small=[0]).code == "over_capacity"


def test_a_swarm_that_declares_nothing_is_refused_with_what_to_do() -> None:
    problem = refused(Host("bare", {}, {}))
    assert (problem.code, problem.status) == ("no_generic_resources", 409)
    assert "gpushare doctor" in problem.message


def test_a_swarm_whose_nodes_are_all_away_is_not_taken_for_one_that_declares_nothing() -> None:
    """So it is for some seconds after the leader of its managers died: a new one hears of each node first."""
    problem = refused()
    assert (problem.code, problem.status) == ("node_away", 503)
    assert "Try again shortly" in problem.message


def test_what_no_node_can_ever_give_is_refused_with_the_figures() -> None:
    problem = refused(SMALL, TWO, size=9 * GIB)
    assert problem.message == "9 GiB is more than any node declares: the most on one card is 8 GiB."
    assert (problem.code, problem.field) == ("over_capacity", "gpu_memory")
    assert refused(SMALL, TWO, size=4 * GIB, count=3).code == "over_capacity"


def test_what_a_node_could_give_that_is_away_is_no_matter_of_size() -> None:
    """So it is where the node with the large card is being restarted: no answer says to ask for less."""
    away = replace(TWO, there=False)
    problem = refused(SMALL, away, size=8 * GIB)
    assert (problem.code, problem.status) == ("node_away", 503)
    assert problem.message.startswith('Only "two" could give 8 GiB, and it is away, or drained, just now.')
    assert refused(SMALL, away, count=2).message.startswith('Only "two" could give 1 GiB on 2 cards, and')
    assert choose_host([SMALL, away], GIB, 1, {}) == ("", [0])
    assert refused(SMALL, away, size=9 * GIB).code == "over_capacity"
    assert refused(SMALL, away, two=[0]).code == "node_away"
    assert refused(away).message.startswith("No node of this Swarm takes containers just now")


def test_what_only_nodes_that_are_away_are_as_asked_is_refused_with_their_names() -> None:
    away = replace(TWO, there=False, labels={"disk": "ssd"})
    with pytest.raises(Problem) as caught:
        as_asked([SMALL, away], ["node.labels.disk==ssd"])
    assert (caught.value.code, caught.value.status) == ("node_away", 503)
    assert caught.value.message.startswith('Only "two" is as asked, and it is away, or drained, just now.')
    with pytest.raises(Problem) as caught:
        as_asked([SMALL, away], ["node.labels.disk==tape"])
    assert caught.value.code == "no_such_node"


@pytest.mark.parametrize("size", [1, MIB - 1, MIB, MIB + 1, 5 * GIB - 1])
def test_reservations_are_rounded_up_and_cards_down(size: int) -> None:
    """So those that fit by Swarm's count fit by bytes."""
    (asked,) = kinds.reservation({0: size})
    assert asked["DiscreteResourceSpec"]["Value"] * MIB >= size
    declared = json.loads(kinds.lines({0: size}))["node-generic-resources"]
    assert int(declared[0].partition("=")[2]) * MIB <= size


def test_kinds_of_others_and_values_that_are_no_numbers_are_left_out() -> None:
    resources = [
        {"DiscreteResourceSpec": {"Kind": "gpu0_mib", "Value": 5}},
        {"DiscreteResourceSpec": {"Kind": "gpu-1", "Value": 7}},
        {"NamedResourceSpec": {"Kind": "gpu2_mib", "Value": "4GiB"}},
        {"NamedResourceSpec": {"Kind": "GPU", "Value": "GPU-1"}},
    ]
    assert kinds.read(resources) == {0: 5 * MIB}
    assert kinds.misread(resources) == ["gpu2_mib"]
    assert kinds.read(None) == {}

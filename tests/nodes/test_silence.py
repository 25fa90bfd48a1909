"""A node that fell silent, one that is drained, one that is removed, and two that want the same name."""

import signal
from typing import Any

import psycopg

from tests.support.appliance import until
from tests.support.cluster import Cluster
from tests.support.eventually import PATIENCE

GIB = 2**30


def away(cluster: Cluster, name: str) -> bool:
    return not cluster.is_alive(name)


def memory(cluster: Cluster, made: Any) -> list[Any]:
    """What a container's cards say of its bytes. (Its time is measured again every second while its node lives.)"""
    return [(gpu["quota"], gpu["granted"], gpu["used"], gpu["waiting"]) for gpu in cluster.container(made)["gpus"]]


def test_a_killed_scheduler_s_node_is_away_with_what_it_holds_and_comes_back_with_it(cluster: Cluster) -> None:
    held = cluster.hold("512MiB", node="small", name="held")
    until(lambda: cluster.used(held) >= GIB // 2)
    before = memory(cluster, held)
    cluster.kill("small")
    until(lambda: away(cluster, "small"))
    # Its last state, and nothing decided about it.
    assert cluster.container(held)["state"] == "running"
    assert memory(cluster, held) == before
    (item,) = [each for each in cluster.api("GET", "attention/")["results"] if each["kind"] == "scheduler_away"]
    assert '"small" is away' in item["message"]

    killed = cluster.ask("POST", f"containers/{held['id']}/kill/", {})
    assert (killed.status_code, killed.json()["error"]["code"]) == (503, "scheduler_away")
    assert '"small"' in killed.json()["error"]["message"]
    refused = cluster.ask("POST", "containers/", {"image": "local", "node": "small"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "scheduler_away")
    elsewhere = cluster.hold("64MiB", "512MiB")
    assert elsewhere["node"] != "small"
    until(lambda: cluster.used(elsewhere))

    cluster.start("small")
    until(lambda: cluster.is_alive("small"))  # at once: the lease was of the same home
    assert cluster.container(held)["state"] == "running"
    assert cluster.api("POST", f"containers/{held['id']}/kill/", {})["state"] == "killed"


def test_a_drained_node_takes_no_launches_and_what_runs_goes_on(cluster: Cluster) -> None:
    held = cluster.hold("512MiB", node="large")
    until(lambda: cluster.used(held) >= GIB // 2)
    assert cluster.api("POST", "nodes/large/drain/", {"note": "new fans"})["drained_at"]
    try:
        refused = cluster.ask("POST", "containers/", {"image": "local", "node": "large"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "node_draining")
        # Nobody else could: nothing is launched.
        refused = cluster.ask("POST", "containers/", {"image": "local", "gpu_memory": "3GiB"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "node_draining")
        assert cluster.hold("64MiB", "256MiB")["node"] == "middle"
        assert cluster.container(held)["state"] == "running"
        assert cluster.api("PATCH", f"containers/{held['id']}/", {"gpu_memory": "1GiB"})["gpus"][0]["quota"] == GIB
    finally:
        assert cluster.api("POST", "nodes/large/undrain/", {})["drained_at"] is None
    assert cluster.hold("64MiB", "3GiB")["node"] == "large"
    done = [each["action"] for each in cluster.api("GET", "audit/?page_size=1000")["results"]]
    assert {"drain-node", "undrain-node"} <= set(done)


def test_a_second_scheduler_of_the_same_name_is_refused_while_the_first_lives(cluster: Cluster) -> None:
    said = cluster.refused("other", GPUSHARE_NODE="small", GPUSHARE_GPUS="sim:1x1GiB")
    assert 'Another scheduler works under the node name "small"' in said
    assert "GPUSHARE_NODE" in said
    assert cluster.is_alive("small")
    made = cluster.hold("64MiB", node="small")  # the first has not noticed
    until(lambda: cluster.used(made))


def test_the_name_of_a_dead_scheduler_is_free_after_a_while_and_who_comes_back_finds_it_taken(cluster: Cluster) -> None:
    """The first is stopped where it stands, which is what a host that hangs looks like from outside."""
    first = cluster.process("small")
    first.send_signal(signal.SIGSTOP)
    try:
        until(lambda: away(cluster, "small"))
        cluster.cards["other"] = "sim:1x1GiB"
        environ = cluster.environ
        cluster.environ = lambda name, **more: (
            environ(name, **more)
            | (  # type: ignore[method-assign]
                {"GPUSHARE_NODE": "small"} if name == "other" else {}
            )
        )

        def taken() -> bool:
            if "other" not in cluster._services or cluster.process("other").poll() is not None:
                cluster.start("other")  # as systemd would: refused until the lease has lapsed
            return cluster.is_alive("small")

        until(taken)
        first.send_signal(signal.SIGCONT)
        assert first.wait(PATIENCE) == 1
        assert "another one took its node's name" in cluster.said("small")
    finally:
        first.send_signal(signal.SIGCONT)
        cluster._services.pop("small", None)
        if "other" in cluster._services:
            cluster.stop("other")
        cluster.cards.pop("other", None)
    cluster.start("small")  # the name was given back
    until(lambda: cluster.is_alive("small"))


def test_a_node_is_removed_once_it_is_away_and_empty_and_its_history_stays(cluster: Cluster) -> None:
    made = cluster.hold("64MiB", node="middle", name="of-the-middle")
    until(lambda: cluster.used(made))
    refused = cluster.ask("DELETE", "nodes/middle/")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "node_alive")
    cluster.kill("middle")
    until(lambda: away(cluster, "middle"))
    refused = cluster.ask("DELETE", "nodes/middle/")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "node_holds")
    assert "of-the-middle" in refused.json()["error"]["message"]
    cluster.start("middle")
    until(lambda: cluster.is_alive("middle"))
    cluster.api("POST", f"containers/{made['id']}/kill/", {})
    cluster.stop("middle")
    until(lambda: away(cluster, "middle"))
    assert cluster.ask("DELETE", "nodes/middle/").status_code == 204
    assert {node["name"] for node in cluster.api("GET", "nodes/")["results"]} == {"small", "large"}
    assert cluster.container(made)["node"] == "middle"
    assert not [each for each in cluster.api("GET", "attention/")["results"] if "middle" in each["message"]]
    report = cluster.api("GET", "reports/allocations/?group_by=node")
    assert "middle" in {row["group"] for row in report["rows"]}
    cluster.start("middle")  # joined again
    until(lambda: cluster.is_alive("middle"))


def test_a_node_of_another_release_is_reported(cluster: Cluster) -> None:
    def release(name: str) -> None:
        with psycopg.connect(cluster.postgres.url) as database:
            database.execute("UPDATE web_node SET release = %s WHERE name = 'large'", [name])

    ours = cluster.node("large")["release"]
    release("0.0.9")
    try:
        (item,) = [each for each in cluster.api("GET", "attention/")["results"] if each["kind"] == "other_release"]
        assert '"large" is of release 0.0.9' in item["message"]
        assert cluster.hold("64MiB", node="large")["state"] == "running"  # a warning, and no refusal
    finally:
        release(ours)


def test_labels_are_said_taken_back_and_judged(cluster: Cluster) -> None:
    assert cluster.api("PATCH", "nodes/large/", {"labels": {"disk": "ssd", "rack": "b 2"}})["labels"] == {
        "disk": "ssd", "rack": "b 2",
    }  # fmt: skip
    assert cluster.api("PATCH", "nodes/large/", {"labels": {"rack": None}})["labels"] == {"disk": "ssd"}
    for bad in ({"a b": "x"}, {"a": 1}, {"a": "x" * 256}, ["a"], {"": "x"}, {"a": "x\n"}):
        answer = cluster.ask("PATCH", "nodes/large/", {"labels": bad})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, "labels"), bad
    many = {f"l{number}": "x" for number in range(64)}
    assert cluster.ask("PATCH", "nodes/large/", {"labels": many}).status_code == 400
    assert cluster.node("large")["labels"] == {"disk": "ssd"}
    assert cluster.api("PATCH", "nodes/large/", {"labels": {"disk": None}})["labels"] == {}

"""Launches of one appliance with three nodes: where each goes and why, and that each scheduler sees to its own."""

import subprocess
from typing import Any

from tests.cli.support import ENTRY, environment
from tests.support.appliance import until
from tests.support.cluster import Cluster

GIB = 2**30


def refusal(cluster: Cluster, **body: Any) -> tuple[int, str, str]:
    answer = cluster.ask("POST", "containers/", {"image": "local", "command": ["true"], **body})
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


def test_each_node_runs_what_was_launched_there(cluster: Cluster) -> None:
    made = {name: cluster.hold("512MiB", node=name) for name in cluster.cards}
    for name, container in made.items():
        until(lambda each=container: cluster.used(each) >= GIB // 2)
        found = cluster.container(container)
        assert (found["node"], found["state"], found["node_reason"]) == (name, "running", f"{name} was asked for.")
        gpus = {gpu["uuid"] for gpu in cluster.api("GET", "gpus/")["results"] if gpu["node"] == name}
        assert {gpu["uuid"] for gpu in found["gpus"]} <= gpus
        assert (cluster.home(name) / "logs" / f"{found['id']}.log").exists()
    on_large = cluster.api("GET", "containers/?live=true&node=large")["results"]
    assert [each["id"] for each in on_large] == [made["large"]["id"]]


def test_a_container_has_its_gpus_on_one_node(cluster: Cluster) -> None:
    cards = {gpu["node"]: gpu["uuid"] for gpu in cluster.api("GET", "gpus/")["results"]}
    assert refusal(cluster, gpus=[cards["small"], cards["large"]])[:2] == (400, "gpus_apart")
    assert refusal(cluster, gpus=[cards["small"]], node="large")[:2] == (400, "gpus_apart")
    made = cluster.hold("64MiB", gpus=[cards["middle"]])
    assert made["node"] == "middle"


def test_several_people_launch_at_once_and_nobody_is_run_twice(cluster: Cluster) -> None:
    people = [cluster.person(name) for name in ("ann", "bob", "cyd")]
    made = [cluster.hold("32MiB", "256MiB", user=person) for person in people for _ in range(4)]
    until(lambda: all(cluster.used(each) for each in made))
    logs = [path for name in cluster.cards for path in (cluster.home(name) / "logs").glob("*")]
    ids = [each["id"] for each in made]
    assert sorted(path.stem for path in logs if path.stem in ids) == sorted(ids)
    assert len({cluster.container(each)["node"] for each in made}) > 1
    events = cluster.api("GET", "audit/?page_size=1000")  # one log of all of them
    launched = [each["subject"] for each in events["results"] if each["action"] == "launch"]
    assert set(ids) <= set(launched)


def test_a_policy_is_set_on_all_and_one_node_s_queue_is_its_own(cluster: Cluster) -> None:
    cluster.api("PUT", "policy/", {"policy": "best-fit"})
    until(lambda: {node["policy"] for node in cluster.api("GET", "nodes/")["results"]} == {"best-fit"})
    cluster.api("PUT", "policy/", {"policy": "fifo"})
    holder = cluster.hold("768MiB", node="small", name="holder")
    until(lambda: cluster.used(holder) >= 768 << 20)
    waiting = []
    for number, name in enumerate(("first", "second"), 1):
        waiting.append(cluster.hold("512MiB", node="small", name=name))
        until(lambda number=number: cluster.api("GET", "queue/")["count"] == number)
    queue = cluster.api("GET", "queue/")["results"]
    assert [(each["name"], each["node"]) for each in queue] == [("first", "small"), ("second", "small")]
    cluster.api("PUT", "queue/", {"containers": [waiting[1]["id"], waiting[0]["id"]]})
    until(lambda: [each["name"] for each in cluster.api("GET", "queue/")["results"]] == ["second", "first"])


def test_a_constraint_keeps_to_the_nodes_that_are_so_and_the_command_line_says_where_it_would_go(
    cluster: Cluster,
) -> None:
    for name, disk in {"small": "ssd", "middle": "ssd", "large": "tape"}.items():
        cluster.api("PATCH", f"nodes/{name}/", {"labels": {"disk": disk}})
    fast = cluster.hold("64MiB", constraints=["node.labels.disk==ssd"])
    assert (fast["node"], fast["constraints"]) == ("middle", ["node.labels.disk==ssd"])
    assert fast["node_reason"].startswith("middle has the most room: 2 GiB")
    assert cluster.hold("64MiB", constraints=["node.labels.disk==ssd", "node!=middle"])["node"] == "small"
    assert refusal(cluster, constraints=["node.labels.disk==ssd", "node==large"])[:2] == (400, "no_such_node")
    assert refusal(cluster, gpu_memory="3GiB", constraints=["node.labels.disk==ssd"])[:2] == (400, "over_capacity")
    cluster.api("POST", "nodes/middle/drain/", {})
    assert refusal(cluster, gpu_memory="2GiB", constraints=["node.labels.disk==ssd"])[:2] == (409, "node_draining")
    cluster.api("POST", "nodes/middle/undrain/", {})
    output = gpushare(cluster, "forecast", "--gpu-memory", "1GiB", "--constraint", "node.labels.disk==ssd")
    assert output.startswith("Would go to middle. middle has the most room: ")
    run = ("run", "-d", "--gpu-memory", "64MiB", "--constraint", "node==small", "local", "sleep", "600")
    assert cluster.container({"id": gpushare(cluster, *run).strip()})["node"] == "small"


def test_a_node_without_a_swarm_begins_nothing_again_and_says_what_does(cluster: Cluster) -> None:
    assert refusal(cluster, restart="on-failure") == (
        400, "not_supported",
        "Only a Swarm restarts containers. Here, start it with Docker's own --restart and a volume "
        "(docs/volumes.md).",
    )  # fmt: skip
    assert cluster.api("GET", "containers/?live=true")["count"] == 0


def gpushare(cluster: Cluster, *words: str) -> str:
    admin = {"GPUSHARE_URL": cluster.url, "GPUSHARE_TOKEN": cluster.admin()}
    done = subprocess.run([*ENTRY, *words], env=environment(admin), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout

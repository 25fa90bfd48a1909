"""What several nodes look like on the command line: one queue and one report, each with the node's name."""

import csv
import json

from tests.cli.support import gpushare
from tests.support.appliance import until
from tests.support.cluster import Cluster


def test_the_queue_and_the_report_name_the_node(cluster: Cluster) -> None:
    login = {"GPUSHARE_URL": cluster.url, "GPUSHARE_TOKEN": cluster.admin()}

    def output(*words: str) -> str:
        done = gpushare(*words, environ=login)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output("queue") == "No container waits for GPU memory.\n"
    holder = cluster.hold("768MiB", node="small", name="holder")
    until(lambda: cluster.used(holder) >= 768 << 20)
    cluster.hold("512MiB", node="small", name="waiter")
    until(lambda: cluster.api("GET", "queue/")["count"] == 1)
    heads, row = output("queue").splitlines()  # one alone that waits has its node shown, too
    assert heads.split() == ["#", "NAME", "OWNER", "NEEDS", "SINCE", "NODE", "WHY"]
    assert row.split()[1] == "waiter"
    assert row[heads.index("NODE") :].startswith("small ")
    assert [(each["name"], each["node"]) for each in json.loads(output("queue", "--json"))] == [("waiter", "small")]

    held = cluster.hold("512MiB", node="middle")
    until(lambda: cluster.used(held) >= 512 << 20)
    rows = {line.split()[0]: line for line in output("report", "--from", "1h", "--group-by", "node").splitlines()[2:]}
    assert {"small", "middle", "total"} <= rows.keys()
    lines = output("report", "--from", "1h", "--group-by", "node", "--csv").splitlines()
    found = {row["node"]: int(row["containers"]) for row in csv.DictReader(lines)}
    assert found["small"] >= 2
    assert found["middle"] >= 1

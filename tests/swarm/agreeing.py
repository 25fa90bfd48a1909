"""What has to be so whatever befell the nodes: while they work (`Watch`), and when all has ended (`agree`)."""

import subprocess
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

import psycopg

from tests.support.appliance import ROOT
from tests.support.eventually import until
from tests.swarm.three import CARDS, LABEL, Three

EVERY = 0.25  # seconds

# Each a sentence and the rows for which it is wrong. What is granted is what programs may hold without asking again.
# The sum of quotas is not among them: what Swarm reserves it counts itself, and of what
# died with an engine it knows a moment before our record does.
NEVER = {
    "holds more than its quota": "SELECT container_id, used, granted, quota FROM web_claim "
                                 "WHERE used > quota OR granted > quota OR peak > quota",
    "a card is given away beyond what it has": (
        "SELECT g.uuid, sum(c.granted), g.capacity FROM web_claim c JOIN web_gpu g ON g.id = c.gpu_id "
        "JOIN web_container k ON k.id = c.container_id WHERE k.finished_at IS NULL GROUP BY g.id "
        "HAVING sum(c.granted) > g.most"
    ),
    "somebody has more than the allowance": (
        "SELECT u.username, sum(coalesce((SELECT sum(quota) FROM web_claim WHERE container_id = k.id), "
        "k.gpu_memory * k.gpu_count)) held, min(a.gpu_memory) FROM web_container k "
        "JOIN auth_user u ON u.id = k.owner_id JOIN web_allowance a ON a.user_id = u.id WHERE k.finished_at IS NULL "
        "GROUP BY u.id HAVING sum(coalesce((SELECT sum(quota) FROM web_claim WHERE container_id = k.id), "
        "k.gpu_memory * k.gpu_count)) > min(a.gpu_memory)"
    ),
}  # fmt: skip

AT_THE_END = {
    "lives": "SELECT name FROM web_container WHERE finished_at IS NULL",
    "still holds something": "SELECT container_id, used, granted FROM web_claim WHERE used <> 0 OR granted <> 0",
    "is on cards of another node": (
        "SELECT k.name FROM web_claim c JOIN web_gpu g ON g.id = c.gpu_id "
        "JOIN web_container k ON k.id = c.container_id WHERE k.node_id <> g.node_id"
    ),
    "has no end, or several": (
        "SELECT k.name, count(e.id) FROM web_container k LEFT JOIN web_allocationevent e ON e.container_id = k.id AND "
        "e.kind = 'ended' WHERE k.started_at IS NOT NULL GROUP BY k.id HAVING count(e.id) <> 1"
    ),
    "began more than once": (
        "SELECT container_id, gpu_id, count(*) FROM web_allocationevent WHERE kind = 'started' GROUP BY 1, 2 "
        "HAVING count(*) > 1"
    ),
    "was never done": "SELECT kind, node_id FROM web_command WHERE done_at IS NULL",
    "is of no launch in the audit log": (
        "SELECT name FROM web_container k WHERE NOT EXISTS (SELECT 1 FROM web_auditentry WHERE action = 'launch' AND "
        "subject = k.id::text)"
    ),
}


class Watch:
    """Looks at the database all the while; what it has found is in `faults`."""

    def __init__(self, three: Three) -> None:
        self._url, self._over = three.postgres.url, threading.Event()
        self.faults: list[str] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as database:
            while not self._over.wait(EVERY):
                self.faults += _faults(database, NEVER)
                self.looks += 1


def _faults(database: psycopg.Connection[Any], questions: dict[str, str]) -> list[str]:
    return [f"{what}: {row}" for what, question in questions.items() for row in database.execute(question)]


def agree(three: Three) -> None:
    """Database, engines, leases and audit, once all has ended."""
    with psycopg.connect(three.postgres.url, autocommit=True) as database:
        until(lambda: not _faults(database, AT_THE_END), every=0.5)
        assert _faults(database, NEVER) == []
        until(lambda: not three.services(), every=0.5)
        until(lambda: all(not gpu["real"] for gpu in three.api("GET", "gpus/")["results"]), every=0.5)
        for gpu in three.api("GET", "gpus/")["results"]:
            assert gpu["free"] == gpu["capacity"], gpu
        for name in CARDS:
            _agree_with_engine(three, name, database)
    words = [sys.executable, "manage.py", "verify_audit"]
    said = subprocess.run(words, cwd=ROOT, env=three.environ("web"), text=True, capture_output=True, check=False)
    assert "whole" in said.stdout, said


def _agree_with_engine(three: Three, name: str, database: psycopg.Connection[Any]) -> None:
    """What the engine of a node has of ours has ended there, as the database tells it."""
    member = three.member(name)
    recorded = {
        str(id_): (node, code)
        for id_, node, code in database.execute(
            "SELECT k.id, n.name, k.exit_code FROM web_container k JOIN web_node n ON n.id = k.node_id"
        )
    }
    for each in member.api.containers(all=True, filters={"label": LABEL}):
        id_ = each["Labels"][LABEL]
        if each["State"] == "created":
            continue  # begun a second time by a Swarm, and refused
        seen = member.api.inspect_container(each["Id"])["State"]
        assert not seen["Running"], (name, each)
        node, code = recorded[id_]
        assert node == name, (name, each)
        if code is not None:
            assert seen["ExitCode"] == code, (name, each, code)


def all_ended(three: Three) -> bool:
    with suppress(Exception):  # the web side answers 429 where it is asked too often
        return bool(three.api("GET", "containers/?live=true")["count"] == 0)
    return False

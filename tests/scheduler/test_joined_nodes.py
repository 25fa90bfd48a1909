"""A host joins with a token, its scheduler works under a PostgreSQL role of its own, and that may do nothing else."""

from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from tests.support.appliance import http, until
from tests.support.joined import Site, as_node, launched
from tests.support.postgres import BIN

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL"),
]


def test_joining_writes_what_a_node_needs_and_keeps_what_was_there(site: Site) -> None:
    before = site.joined("tidy")
    text = site.settings("tidy").read_text()
    assert text.startswith("# of this host\nGPUSHARE_GPUS=sim:1x1GiB\nGPUSHARE_NODE=tidy\n")
    assert site.settings("tidy").stat().st_mode & 0o777 == 0o600
    as_node(before).close()
    again = site.joined("tidy")
    assert again.keys() == before.keys()
    as_node(again).close()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        as_node(before)


def test_scheduler_does_all_its_work_under_the_role(site: Site, gpu2: dict[str, str]) -> None:
    main, container = site.main, launched(site, "worked")
    assert main.api("POST", f"containers/{container}/pause/", {})["state"] == "paused"
    assert main.api("POST", f"containers/{container}/resume/", {})["state"] == "running"
    main.api("PATCH", f"containers/{container}/", {"gpu_memory": "400MiB", "priority": 3, "compute_weight": 50})
    # Its quota is the image's or the usual one: its owner's allowance is looked at on the node.
    other = main.launch({"image": "local", "command": ["true"], "name": "short"})
    until(lambda: main.state(other) == "exited")
    main.api("DELETE", f"containers/{other}/")
    assert main.api("POST", f"containers/{container}/kill/", {})["state"] == "killed"
    body = {"image": "local", "command": ["true"], "after": ["worked:failed"], "sweep": {"count": 2}, "retries": 1}
    planned = main.api("POST", "containers/", {**body, "node": "gpu2", "gpu_memory": "300MiB"})["id"]
    until(lambda: main.api("GET", f"planned/{planned}/")["ended"] == "ok")
    said = site.log("gpu2")
    assert not any(refused in said for refused in ("permission denied", "row-level security")), said
    assert "whole" in main.manage("verify_audit")
    assert site.sql("SELECT count(*) FROM web_seal WHERE node = 'gpu2'")[0][0] > 0


@pytest.fixture(scope="module")
def of_another(site: Site, gpu2: dict[str, str]) -> dict[str, Any]:
    """Rows of another node, as SQL values."""
    container = launched(site, "mine")
    site.joined("gpu3")
    theirs = "11111111-2222-3333-4444-555555555555"
    site.sql(
        "INSERT INTO web_gpu SELECT (jsonb_populate_record(g, jsonb_build_object('id', 999, 'uuid', 'GPU-other', "
        "'node_id', n.id))).* FROM web_gpu g, web_node n WHERE n.name = 'gpu3' LIMIT 1"
    )
    site.sql(
        "INSERT INTO web_container SELECT (jsonb_populate_record(c, jsonb_build_object('id', %s::text, 'name', "
        "'theirs', 'node_id', n.id))).* FROM web_container c, web_node n WHERE n.name = 'gpu3' AND c.name = 'mine'",
        theirs,
    )
    site.sql(
        "INSERT INTO web_claim (container_id, gpu_id, quota, granted, used, peak, overhead, unexplained, waiting, "
        "processes) VALUES (%s, 999, 5, 5, 5, 5, 0, 0, 0, '[]')",
        theirs,
    )
    return {"theirs": theirs, "mine": container}


def command(kind: str, container: str, node: str, issued_by: str = "NULL", number: int = 0) -> str:
    """SQL that writes one."""
    return (
        "INSERT INTO web_command (id, kind, container_id, node_id, issued_by_id, arguments, note, created_at, outcome, "
        f"code, field, message, number) SELECT gen_random_uuid(), '{kind}', {container}, n.id, {issued_by}, "
        f"'{{}}', '', now(), '', '', '', '', {number} FROM web_node n WHERE n.name = '{node}'"
    )


def entry(action: str, subject: str) -> str:
    """SQL that writes one, of what Docker asked."""
    return (
        "INSERT INTO web_auditentry (at, action, actor, address, subject, detail, seal_id) "
        f"SELECT now(), '{action}', 'docker', '', {subject}, '{{}}', number + 1 FROM web_chain"
    )


def usage(card: str, person: str = "admin") -> str:
    """A row of what somebody has had, in SQL."""
    return (
        "INSERT INTO web_usage (gpu_id, person, had, due, at, forgiven, ratio) "
        f"SELECT {card}, '{person}', 1, 1, now(), 0, 1"
    )


OWN_CARD = "(SELECT g.id FROM web_gpu g, web_node n WHERE n.id = g.node_id AND n.name = 'gpu2' LIMIT 1)"
REFUSED = {
    "other people's passwords": "SELECT password FROM auth_user",
    "their addresses": "SELECT email FROM auth_user",
    "another password": "UPDATE auth_user SET password = 'x'",
    "an admin of its own": "INSERT INTO auth_user (username) VALUES ('x')",
    "a role": "UPDATE auth_user SET is_superuser = true",
    "tokens": "SELECT digest FROM web_token",
    "sessions": "SELECT session_data FROM django_session",
    "receivers' secrets": "SELECT * FROM web_receiver",
    "invitations": "SELECT * FROM web_invitation",
    "the log of deeds": "SELECT * FROM web_auditentry",
    "a deed in somebody's name": "INSERT INTO web_auditentry (at, action) VALUES (now(), 'x')",
    "what was verified": "UPDATE web_verification SET ok = true",
    "an allowance": "UPDATE web_allowance SET gpu_memory = NULL",
    "a group": "INSERT INTO auth_user_groups (user_id, group_id) SELECT 1, 1",
    "a launch for somebody": "INSERT INTO web_container (id, owner_id) VALUES (gen_random_uuid(), 1)",
    "an owner": "UPDATE web_container SET owner_id = 2",
    "what its own run, by name": "UPDATE web_container SET image = 'x' WHERE id = %(mine)s",
    "a container on another node": "INSERT INTO web_container (id, node_id, volume, mount) SELECT gen_random_uuid(), "
                                   "n.id, 'v', 'm' FROM web_node n WHERE n.name = 'gpu3'",
    "a volume of another's": "INSERT INTO web_volume (name, node_id, options, created_at) SELECT 'x', n.id, '{}', "
                             "now() FROM web_node n WHERE n.name = 'gpu3'",
    "a deed of an admin": "INSERT INTO web_auditentry (at, action, actor, address, subject, detail, seal_id) SELECT "
                          "now(), 'x', 'admin', '', '', '{}', number + 1 FROM web_chain",
    "a warning to an owner": entry("warn", "%(mine)s"),
    "what Docker asked of another's container": entry("mount", "%(theirs)s"),
    "what Docker asked of nothing": entry("mount", "'x'"),
    "what its own run": "UPDATE web_container SET command = '[]'",
    "the end of history": "DELETE FROM web_allocationevent",
    "another history": "UPDATE web_allocationevent SET bytes = 0",
    "an older seal": "UPDATE web_seal SET hash = 'x'",
    "no seal": "DELETE FROM web_seal",
    "a seal of another": "INSERT INTO web_seal (number, at, rows, node, previous, hash) "
                         "SELECT number + 1, now(), 0, '', hash, 'x' FROM web_chain",
    "a seal beyond the end": "INSERT INTO web_seal (number, at, rows, node, previous, hash) "
                             "SELECT number + 9, now(), 0, 'gpu2', hash, 'x' FROM web_chain",
    "the chain cut off": "UPDATE web_chain SET number = 0, hash = repeat('0', 64)",
    "the chain without a seal": "UPDATE web_chain SET number = number + 1",
    "its own name": "UPDATE web_node SET name = 'x'",
    "launches while it is drained": "UPDATE web_node SET drained_at = NULL",
    "its place in the list": "UPDATE web_node SET removed_at = NULL",
    "others' launches": "UPDATE web_node SET placer = 'swarm'",
    "the key of a launch": "UPDATE web_container SET handed = 'x'",
    "what people say of it": "UPDATE web_node SET labels = '{}'",
    "another's role": "UPDATE web_node SET role = 'x'",
    "a node": "INSERT INTO web_node (name) VALUES ('x')",
    "a card for another": "INSERT INTO web_gpu (uuid, node_id, index, name, present, simulated, total, capacity, most, "
                          "free, idle, \"foreign\", real, context, compute_asked, strangers, compute, compute_why) "
                          "SELECT 'GPU-x', n.id, 9, 'x', true, true, 1, 1, 1, 1, 1, 1, 1, 1, '', '[]', 'turns', '' "
                          "FROM web_node n WHERE n.name = 'gpu3'",
    "a kill of its own": command("kill", "%(mine)s", "gpu2"),
    "a pause of another's": command("pause", "%(theirs)s", "gpu2"),
    "a pause by another": command("pause", "%(mine)s", "gpu3"),
    "a pause by somebody": command("pause", "%(mine)s", "gpu2", issued_by="1"),
    "an event of another's": "INSERT INTO web_allocationevent (at, kind, container_id, bytes, waited, policy, detail, "
                             "seal_id) SELECT now(), 'ended', %(theirs)s, 0, 0, '', '', number + 1 FROM web_chain",
    "an event under an old seal": "INSERT INTO web_allocationevent (at, kind, container_id, bytes, waited, policy, "
                                  "detail, seal_id) VALUES (now(), 'ended', %(mine)s, 0, 0, '', '', 1)",
    "a claim of another's": "INSERT INTO web_claim (container_id, gpu_id, quota, granted, used, peak, overhead, "
                            "unexplained, waiting, processes) VALUES (%(theirs)s, 999, 1, 1, 1, 1, 0, 0, 0, '[]')",
    "a claim on another's card": "INSERT INTO web_claim (container_id, gpu_id, quota, granted, used, peak, overhead, "
                                 "unexplained, waiting, processes) VALUES (%(mine)s, 999, 1, 1, 1, 1, 0, 0, 0, '[]')",
    "a sample of another's": "INSERT INTO web_usagesample (at, span, gpu_id, used, peak, granted, suspended) "
                             "VALUES (now(), 1, 999, 1, 1, 1, 0)",
    "usage of another's card": usage("999"),
    "usage of a name without an account": usage(OWN_CARD, "x"),
    "usage under another name": "UPDATE web_usage SET person = 'x'",
    "an hour of a name without an account": "INSERT INTO web_usagehour (gpu_id, person, hour, had, due) "
                                            f"SELECT {OWN_CARD}, 'x', 1, 1, 1",
    "shares": "INSERT INTO web_personshares (user_id, shares, boost, forgiven) SELECT 1, 9, 1, 0",
    "a group's shares": "UPDATE web_groupshares SET shares = 9",
    "a container of its own given away": "UPDATE web_container SET node_id = (SELECT id FROM web_node WHERE "
                                         "name = 'gpu3') WHERE id = %(mine)s",
    "a table": "CREATE TABLE x (a integer)",
    "another role": "CREATE ROLE x",
    "to be the owner": "SET ROLE appliance",
    "the rules away": "DROP POLICY gpushare_select ON web_container",
}  # fmt: skip

UNTOUCHED = {
    "another's container": "UPDATE web_container SET reason = 'x' WHERE id = %(theirs)s",
    "another's claim": "UPDATE web_claim SET used = 0 WHERE container_id = %(theirs)s",
    "another's name": "UPDATE web_node SET holder = 'x' WHERE name <> 'gpu2'",
    "another's link": "UPDATE web_node SET link_key = 'x' WHERE name <> 'gpu2'",
    "another's node": "UPDATE web_node SET policy = 'x' WHERE name <> 'gpu2'",
    "another's card": "UPDATE web_gpu SET total = 0 WHERE id = 999",
    "another's samples": "DELETE FROM web_usagesample WHERE gpu_id = 999",
    "another's commands": "UPDATE web_command SET message = 'x' WHERE container_id = %(theirs)s",
}


@pytest.mark.parametrize("what", REFUSED)
def test_role_is_refused(gpu2: dict[str, str], of_another: dict[str, Any], what: str) -> None:
    with as_node(gpu2) as database, pytest.raises(InsufficientPrivilege):
        database.execute(REFUSED[what], of_another)


@pytest.mark.parametrize("what", UNTOUCHED)
def test_role_does_not_reach(gpu2: dict[str, str], of_another: dict[str, Any], what: str) -> None:
    with as_node(gpu2) as database:
        assert database.execute(UNTOUCHED[what], of_another).rowcount == 0


def test_role_may_ask_for_a_pause_of_its_own(gpu2: dict[str, str], of_another: dict[str, Any]) -> None:
    """What is refused above is refused for what is different there."""
    with as_node(gpu2) as database:
        assert database.execute(command("pause", "%(mine)s", "gpu2"), of_another).rowcount == 1
        assert database.execute(entry("mount", "%(mine)s"), of_another).rowcount == 1
        own = "(SELECT gpu_id FROM web_claim WHERE container_id = %(mine)s)"
        assert database.execute(usage(own), of_another).rowcount == 1
        database.rollback()


def test_pause_that_a_role_asks_for_is_numbered_after_all_commands_and_no_higher(
    site: Site, gpu2: dict[str, str], of_another: dict[str, Any]
) -> None:
    """A number as large as a node may write would leave none for the pauses of all other nodes."""
    site.sql(command("pause", "%s", "gpu3", number=77), of_another["theirs"])  # gpu2 does not see it
    with as_node(gpu2) as database:
        assert database.execute(command("pause", "%(mine)s", "gpu2", number=78), of_another).rowcount == 1
        database.rollback()
    for number in (79, 1 << 53):
        with as_node(gpu2) as database, pytest.raises(InsufficientPrivilege):
            database.execute(command("pause", "%(mine)s", "gpu2", number=number), of_another)


def test_role_reads_no_other_nodes_containers(gpu2: dict[str, str], of_another: dict[str, Any]) -> None:
    with as_node(gpu2) as database:
        found = {str(id_) for (id_,) in database.execute("SELECT id FROM web_container")}
        held = database.execute("SELECT container FROM gpushare_held(1)").fetchall()
    assert of_another["mine"] in found
    assert of_another["theirs"] not in found
    assert len(held) >= 2  # but what its owner holds on all nodes counts


def test_output_comes_over_the_link_that_its_scheduler_keeps(
    site: Site, gpu2: dict[str, str], of_another: dict[str, Any]
) -> None:
    """Under its own keys, and without a Redis."""
    said = launched(site, "says", command=["sh", "-c", "echo here; exec sleep 3600"])
    token = (site.main.home / "admin-token").read_text().strip()
    address = f"http://{site.main.address}/api/v1/containers/{said}/logs/"
    until(lambda: http.get(address, headers={"Authorization": f"Token {token}"}).text == "here\n")


MOUNTS = """
from uuid import uuid4
from web.models import Gpu, Node
from web.services import mounting
node = Node.objects.get(name="gpu2")
gpu = Gpu.objects.get(node=node)
mounting.make(node.pk, "data", {"gpu_memory": "100MiB"})
asked = mounting.Mounting(uuid4(), "mount-1", "by-docker", "image", ["true"], 100 << 20, [gpu.uuid])
print(mounting.mount(node.pk, "data", {"gpu_memory": "100MiB"}, asked).name)
asked = mounting.Mounting(uuid4(), "mount-2", "theirs", "image", ["true"], 100 << 20, [gpu.uuid])
print(mounting.mount(node.pk, "data", {"gpu_memory": "100MiB"}, asked).name)
mounting.remove(node.pk, "data")
"""


def test_containers_that_docker_starts_are_written_under_the_role(
    site: Site, gpu2: dict[str, str], of_another: dict[str, Any]
) -> None:
    """Also one whose name somebody on another host has, whom the role does not see."""
    environ = {"GPUSHARE_PLUGIN_PEOPLE": "admin", "GPUSHARE_HOME": str(site.folder / "gpu2" / "home")}
    first, second = site.main.manage("shell", "-c", MOUNTS, **gpu2, **environ).split()[-2:]
    assert (first, second[:7]) == ("by-docker", "theirs-")
    assert site.sql("SELECT node_id = (SELECT id FROM web_node WHERE name = 'gpu2'), volume FROM web_container "
                    "WHERE name = 'by-docker'") == [(True, "data")]  # fmt: skip
    said = site.sql("SELECT action FROM web_auditentry WHERE actor = 'docker' ORDER BY id")
    assert said == [("volume",), ("mount",), ("mount",), ("volume-removed",)]
    assert "whole" in site.main.manage("verify_audit")


CLAIMED = """
from dataclasses import replace
from uuid import uuid4
from django.contrib.auth.models import Group, User
from web.models import Gpu, Node
from web.services import claiming
from web.spec.requests import LaunchSpec
node = Node.objects.get(name="gpu2")
gpu = Gpu.objects.get(node=node)
spec = LaunchSpec.parse({"image": "any"})
asked = claiming.Claimed(uuid4(), str(uuid4()), "", "memory-1", {gpu.uuid: 100 << 20}, spec)
made = claiming.claim(node.pk, asked)
pods = [{"name": "train", "uid": "1", "account": "admin", "containers": ["main"]}]
claiming.seen(str(made.pk), "team-a", pods, "of-a-pod", "registry/program:1")
claiming.claim(node.pk, replace(asked, id=uuid4()))
claiming.call_off(node.pk, asked.uid, "never mind")
"""


def test_claims_of_a_cluster_and_whose_pods_they_are_are_written_under_the_role(
    site: Site, gpu2: dict[str, str]
) -> None:
    environ = {"GPUSHARE_KUBERNETES_PEOPLE": "*=admin", "GPUSHARE_HOME": str(site.folder / "gpu2" / "home")}
    site.main.manage("shell", "-c", CLAIMED, **gpu2, **environ)
    assert site.sql("SELECT namespace, image, pods -> 0 ->> 'name' FROM web_container WHERE name = 'of-a-pod'") == [
        ("team-a", "registry/program:1", "train")
    ]
    assert site.sql("SELECT action FROM web_auditentry WHERE actor = 'kubelet'") == [("claim",), ("claim",)]
    ended = "SELECT reason, finished_at IS NULL FROM web_container WHERE volume = '/memory-1' ORDER BY created_at"
    assert [(reason.split()[0], lives) for reason, lives in site.sql(ended)] == [("Its", False), ("never", False)]


TAKES = """
from uuid import UUID
from web.errors import Problem
from web.models import Node
from web.services import mounting
from web.services.placement import accept_placement
from web.services.placement.placement_ticket import PlacementTicket
node = Node.objects.get(name="gpu2").pk
for id_, key in LAUNCHES:
    handed = PlacementTicket(UUID(id_), 100 << 20, (0,), key)
    try:
        mounting.make(node, f"gpushare-{id_}", handed.options())
        taken = accept_placement.accept(node, f"gpushare-{id_}", "swarm-1", handed)
        assert accept_placement.accept(node, f"gpushare-{id_}", "swarm-1", handed) == taken
        print(taken.name, taken.node_reason, [claim.gpu.index for claim in taken.claims.all()], sep="|")
        accept_placement.accept(node, f"gpushare-{id_}", "swarm-2", handed)
    except Problem as problem:
        print(problem.code)
"""


@pytest.fixture
def handed(site: Site, of_another: dict[str, Any]) -> dict[str, str]:
    """Launches that a Swarm has been handed by another node's scheduler, each with a key of its own; ids by name."""
    ids = {name: f"{number:08}-0000-0000-0000-000000000000" for number, name in enumerate(("given", "other", "over"))}
    for name, id_ in ids.items():
        site.sql(
            "INSERT INTO web_container SELECT (jsonb_populate_record(c, jsonb_build_object('id', %s::text, 'name', "
            "%s::text, 'engine', 'swarm', 'started_at', null, 'mount', '', 'volume', '', 'node_reason', '', 'handed', "
            "'key of ' || %s))).* FROM web_container c WHERE c.id = %s",
            id_, name, name, of_another["theirs"],
        )  # fmt: skip
    site.sql("UPDATE web_container SET kill_requested_at = now() WHERE name = 'over'")
    return ids


def test_what_a_swarm_gave_to_the_host_is_taken_under_the_role_and_nothing_else(
    site: Site, gpu2: dict[str, str], handed: dict[str, str]
) -> None:
    launches = [
        (handed["given"], "key of given"), (handed["other"], "key of given"), (handed["over"], "key of over"),
    ]  # fmt: skip
    environ = {"GPUSHARE_HOME": str(site.folder / "gpu2" / "home")}
    said = site.main.manage("shell", "-c", f"LAUNCHES = {launches}\n{TAKES}", **gpu2, **environ).splitlines()[-4:]
    assert said == ["given|Placed by Swarm.|[0]", "started_already", "called_off", "called_off"]
    where = "SELECT c.name, n.name FROM web_container c JOIN web_node n ON n.id = node_id WHERE handed <> ''"
    assert dict(site.sql(where)) == {"given": "gpu2", "other": "gpu3", "over": "gpu3"}
    with as_node(gpu2) as database:  # nor by asking PostgreSQL itself
        seen = {name for (name,) in database.execute("SELECT name FROM web_container WHERE handed <> ''")}
        for key in ("", "key of given", "x"):
            taken = database.execute("SELECT gpushare_take(%s, %s, 'v', 'm')", [handed["other"], key]).fetchone()
            assert taken == (False,)
    assert seen == {"given"}
    assert "whole" in site.main.manage("verify_audit")


AGAIN = """
from uuid import UUID
from web.errors import Problem
from web.models import Node
from web.services import mounting
from web.services.placement import accept_placement
from web.services.placement.placement_ticket import PlacementTicket
node = Node.objects.get(name="gpu2").pk
for key, mount in (("another key", "m-1"), ("key of again", "m-2"), ("key of again", "m-3")):
    handed = PlacementTicket(UUID("{id}"), 100 << 20, (0,), key)
    try:
        mounting.make(node, f"gpushare-{id}", handed.options())
        taken = accept_placement.accept(node, "gpushare-{id}", mount, handed)
        print(taken.run_of_id, taken.environment, taken.node_reason, sep="|")
    except Problem as problem:
        print(problem.code)
"""


def test_what_is_begun_again_on_another_host_is_taken_under_the_role(
    site: Site, gpu2: dict[str, str], of_another: dict[str, Any]
) -> None:
    """Its first run was on gpu3, whose rows the role does not see; who has the launch's key has the next run."""
    first = "00000009-0000-0000-0000-000000000000"
    site.sql(
        "INSERT INTO web_container SELECT (jsonb_populate_record(c, jsonb_build_object('id', %s::text, 'name', "
        "'again', 'mount', 'm-0', 'volume', 'v', 'restart', 'always', 'environment', jsonb_build_object('A', 'b'), "
        "'finished_at', now(), 'handed', 'key of again'))).* FROM web_container c WHERE c.id = %s",
        first, of_another["theirs"],
    )  # fmt: skip
    environ = {"GPUSHARE_HOME": str(site.folder / "gpu2" / "home")}
    said = site.main.manage("shell", "-c", AGAIN.replace("{id}", first), **gpu2, **environ).splitlines()[-3:]
    reason = "Docker's Swarm has begun it again: it is run 2 of again."
    assert said == ["called_off", f"{first}|{{'A': 'b'}}|{reason}", "started_already"]
    site.sql("UPDATE web_container SET finished_at = now(), kill_requested_at = now() WHERE run_of_id = %s", first)
    said = site.main.manage("shell", "-c", AGAIN.replace("{id}", first), **gpu2, **environ).splitlines()[-3:]
    assert said == ["conflict", "called_off", "called_off"]  # the volume is there, and has the key
    assert "whole" in site.main.manage("verify_audit")


def test_rules_are_made_again_by_migrate(site: Site, gpu2: dict[str, str]) -> None:
    site.sql("GRANT SELECT ON auth_user TO appliance_nodes")
    site.main.manage("migrate", "-v0")
    with as_node(gpu2) as database, pytest.raises(InsufficientPrivilege):
        database.execute("SELECT password FROM auth_user")

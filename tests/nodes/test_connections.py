"""PostgreSQL lets 100 in by itself; each node's scheduler is one of them."""

import json
from pathlib import Path

import psycopg

from tests.support.postgres import running_postgres
from tests.support.production import Production
from tests.support.tables import with_tables

ASK = """
import json
from appliance.doctor import services
from web.models import Node
findings = []
for count in (3, 60):
    Node.objects.bulk_create(Node(name=f"gpu{n}") for n in range(Node.objects.count(), count))
    findings.append([f"{each.state.name} {each.found} {each.do}" for each in services.database()])
print(json.dumps(findings))
"""


def test_doctor_says_when_there_are_more_nodes_than_connections(tmp_path: Path) -> None:
    with running_postgres(like=with_tables()) as postgres:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_connections = 100")
            connection.execute("ALTER SYSTEM SET superuser_reserved_connections = 3")
        postgres.stop()
        postgres.start()
        production = Production(tmp_path / "home", postgres, migrated=True)
        try:
            few, many = json.loads(production.manage("shell", "-v0", "-c", ASK))
        finally:
            production.close()
    assert [each.split()[0] for each in few] == ["FINE", "NOTE"]
    assert "is a superuser" in few[1]  # as the test's role is
    assert [each.split()[0] for each in many] == ["FINE", "WRONG", "NOTE"]
    assert "takes 100 connections (3 of them superusers'), and there are 60 nodes" in many[1]
    assert "max_connections to 113 or more" in many[1]

"""How a host joins and leaves: tokens, invitations over REST, another release, removal."""

import json

import psycopg
import pytest

from appliance import VERSION, joining
from tests.support.appliance import http
from tests.support.joined import KEPT, Site, as_node
from tests.support.postgres import BIN

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(BIN is None, reason="needs the distribution's PostgreSQL"),
]


def test_token_is_good_once_and_for_its_name(site: Site) -> None:
    token = site.invite("once")
    refused = site.join(token, "another")
    assert (refused.returncode, 'for the node "once"' in refused.stderr) == (1, True), refused.stderr
    assert site.settings("another").read_text() == KEPT
    assert site.join(token, "once").returncode == 0
    assert "may have been used" in site.join(token, "once").stderr


def test_an_admin_invites_over_rest_and_the_command_that_is_answered_joins(site: Site) -> None:
    words = site.main.api("POST", "nodes/", {"name": "over-rest"})["command"].split()
    assert words[:2] == ["gpushare-node", "join"]
    assert words[4:] == ["--name", "over-rest"]
    assert site.join(words[3], "over-rest").returncode == 0
    said = site.sql("SELECT actor, detail::text FROM web_auditentry WHERE action = 'node-invited' ORDER BY id DESC")
    assert said[0][0] == "admin"
    assert words[3] not in said[0][1]


def test_token_of_yesterday_is_refused(site: Site) -> None:
    token = site.invite("late")
    site.sql("UPDATE web_invitation SET expires_at = now() - interval '1 second' WHERE name = 'late'")
    assert "older than an hour" in site.join(token, "late").stderr


def test_another_release_or_schema_is_refused_and_the_token_stays_good(site: Site) -> None:
    token = site.invite("old")
    body = {"token": token, "node": "old", "release": VERSION, "schema": joining.last_change()}
    for field, code in (("release", "other_release"), ("schema", "other_schema")):
        answer = http.post(f"http://{site.main.address}/api/v1/nodes/join/", json={**body, field: "0.0.1"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, code)
    assert site.join(token, "old").returncode == 0


def test_node_that_is_removed_may_do_nothing_in_a_connection_that_it_has(site: Site) -> None:
    settings = site.joined("gone")
    with as_node(settings) as database:
        assert database.execute("SELECT count(*) FROM web_node").fetchall() != [(0,)]
        database.commit()
        site.main.manage("node", "remove", "gone")
        with pytest.raises(psycopg.OperationalError):  # the connection is gone
            database.execute("SELECT count(*) FROM web_node")
    with pytest.raises(psycopg.OperationalError, match=r"does not exist|not permitted"):
        as_node(settings)
    events = site.main.api("GET", "audit/?action=node-removed")["results"]
    assert "gone" in json.dumps(events)


def test_node_removed_over_rest_loses_its_role_and_is_listed_again_once_it_joins(site: Site) -> None:
    def listed() -> bool:
        return "left" in {node["name"] for node in site.main.api("GET", "nodes/")["results"]}

    settings = site.joined("left")
    assert listed()
    site.main.api("DELETE", "nodes/left/")
    assert not listed()
    with pytest.raises(psycopg.OperationalError, match=r"does not exist|not permitted"):
        as_node(settings)
    again = site.joined("left")
    assert listed()
    with as_node(again) as database:
        assert database.execute("SELECT count(*) FROM web_node").fetchall() != [(0,)]

"""The demo with an appliance that is slow to act: each of its answers is a 202, and what it does comes later."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from appliance.cli.client import Client
from appliance.cli.login import Login
from appliance.demo.story import NotObserved, Story


class Slow:
    """Carries each command out when it is asked for the second time. A demo that was interrupted left its container."""

    def __init__(self, refused: str = "") -> None:
        self.live, self.killed = {"demo-a"}, set[str]()  # by name, which is the id as well
        self.refused = refused  # the launch that fails in the end
        self._begun: list[tuple[str, str]] = []
        self._asked: dict[int, int] = {}

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1/").strip("/").split("/")
        status, body = self._said(request.method, path, request.content)
        return httpx.Response(status, json=body)

    def _said(self, method: str, path: list[str], content: bytes) -> tuple[int, Any]:
        match method, path:
            case "GET", ["containers"]:
                return 200, {"results": [self._row(name) for name in sorted(self.live)], "next": None}
            case "GET", ["containers", name]:
                return 200, self._row(name)
            case "GET", ["containers", _, "logs"]:
                return 200, ""
            case "GET", ["commands", number]:
                return 200, self._command(int(number))
            case "POST", ["containers"]:
                return self._begin("launch", json.loads(content)["name"])
            case "POST", ["containers", name, "kill"]:
                return self._begin("kill", name)
        raise AssertionError(path)

    def _begin(self, what: str, name: str) -> tuple[int, Any]:
        if (name in self.live) is (what == "launch"):
            return 409, {"error": {"code": "name_taken", "message": f"{name} is taken, or is not live"}}
        self._begun.append((what, name))
        number = len(self._begun) - 1
        return 202, {"command": number, "url": f"/api/v1/commands/{number}/", "message": "not yet"}

    def _command(self, number: int) -> dict[str, Any]:
        self._asked[number] = self._asked.get(number, 0) + 1
        what, name = self._begun[number]
        if self._asked[number] < 2:
            return {"done": False, "outcome": "", "container": name}
        if what == "launch" and name == self.refused:
            return {"done": True, "outcome": "refused", "status": 409, "code": "no", "message": "the disk is full"}
        if what == "launch":
            self.live.add(name)
            self.killed.discard(name)
        else:
            self.live.discard(name)
            self.killed.add(name)
        return {"done": True, "outcome": "done", "container": name}

    def _row(self, name: str) -> dict[str, Any]:
        """As the paper's four stand by what has happened so far."""
        d_is_there, a_is_killed = "demo-d" in self.live, "demo-a" in self.killed and "demo-d" in self.live
        state = {
            "demo-a": "killed" if "demo-a" in self.killed else "running",
            "demo-b": "exited" if d_is_there else "running",
            "demo-c": "exited" if a_is_killed else "running" if d_is_there else "suspended",
            "demo-d": "exited" if a_is_killed else "suspended",
        }[name]
        over = "2026-11-27T00:00:00Z" if state in ("exited", "killed") else None
        return {
            "id": name,
            "name": name,
            "state": state,
            "reason": "",
            "finished_at": over,
            "gpus": [{"used": 2 << 30}],
        }


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    client = Client(Login("http://appliance", "token"))
    yield client
    client.close()


def play(client: Client, slow: Slow) -> list[str]:
    said: list[str] = []
    client._http = httpx.Client(transport=httpx.MockTransport(slow.answer), base_url="http://appliance/api/v1/")
    Story(client, "local", said.append).play()
    return said


def test_each_step_is_observed_though_each_answer_is_a_promise(client: Client) -> None:
    slow = Slow()
    said = play(client, slow)
    assert said[-1].endswith("D  had its turn and ended, its result checked")
    assert sum("launched" in line for line in said) == 4


def test_a_launch_that_is_refused_in_the_end_is_said_and_what_ran_is_ended(client: Client) -> None:
    slow = Slow(refused="demo-c")
    with pytest.raises(NotObserved, match="demo-c was not launched: the disk is full"):
        play(client, slow)
    assert slow.live == set()

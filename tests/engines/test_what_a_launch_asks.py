"""What a launch costs, by count: seconds are another machine's, each question and each change of threads is ours."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.engines.base import Launch
from scheduler.engines.docker.engine import DockerEngine
from tests.engines.conftest import empty

pytestmark = pytest.mark.docker


async def test_a_launch_of_a_known_image_asks_docker_three_things_and_changes_threads_once(
    docker_engine: DockerEngine, a_launch: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the image preloads is looked for once, and each of its programs once."""
    await docker_engine.launch(a_launch("sleep", "600"))
    await empty(docker_engine)
    client = docker_engine._client
    asked: list[str] = []
    calls: list[str] = []
    call, blocking = client.call, client.blocking

    def note(answer: Any, **_: object) -> None:
        asked.append(f"{answer.request.method} {answer.request.path_url.split('?')[0].rpartition('/')[2]}")

    def counted(way: Callable[..., Any]) -> Callable[..., Any]:
        async def passed(function: Callable[..., Any], *arguments: Any, **words: str) -> Any:
            calls.append(getattr(function, "__name__", ""))
            return await way(function, *arguments, **words)

        return passed

    # A look that comes by itself is not the launch's: it uses the other of the two clients.
    monkeypatch.setitem(client.api.hooks, "response", [note])
    monkeypatch.setattr(client, "call", counted(call))
    monkeypatch.setattr(client, "blocking", counted(blocking))
    await docker_engine.launch(a_launch("sleep", "600"))
    assert [word for word in asked if not word.endswith(("logs", "events"))][:3] == [
        "GET json", "POST create", "POST start",
    ]  # fmt: skip
    assert [name for name in calls if name not in ("_inspect", "_list", "listed")] == ["make"]

"""What `make demo` says when it does not go as it should."""

from __future__ import annotations

import httpx
import pytest

from appliance.demo.story import NotObserved, Story


def answer(request: httpx.Request) -> httpx.Response:
    """Of an appliance that is late: a container is there that cannot be killed yet, and a launch is not answered."""
    if request.method == "GET":
        return httpx.Response(200, json={"results": [{"id": "1", "name": "demo-a", "finished_at": None}]})
    return httpx.Response(409 if request.url.path.endswith("/kill/") else 202, json={"message": "not yet"})


async def test_a_launch_that_is_not_answered_is_said_though_what_it_made_cannot_be_killed() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://appliance") as client:
        with pytest.raises(NotObserved, match=r"demo-a was not launched: .*not yet"):
            await Story(client, "local", lambda line: None).play()

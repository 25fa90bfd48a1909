"""The appliance as a hub needs it: its REST, and its refusals as sentences for whoever wants a notebook.

It knows nothing of JupyterHub.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import httpx

ANSWERS_WITHIN = 30.0  # seconds
ENDS_WITHIN = 30.0  # seconds after SIGKILL; a process that the kernel holds may take longer, and is left to it
LOOK_EVERY = 0.5
DIRECT = ("all://127.0.0.1", "all://localhost", "all://[::1]")  # no proxy leads to this host
LAST_WORDS = 20  # lines of a notebook's output, for whoever asks why it did not start


class Refused(Exception):
    """The appliance said no. `code` is for programs, `str()` for people, `status` the HTTP status."""

    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class Away(Exception):
    """The appliance, its scheduler or its engine does not answer just now: nothing is known, and nothing was done."""


class Appliance:
    """`url` is where its dashboard is, `token` of an account that may launch for others. Raises Refused and Away."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Token {token}"}
        self._client = httpx.AsyncClient(
            base_url=f"{self._url}/api/v1/", headers=headers, timeout=ANSWERS_WITHIN, mounts=dict.fromkeys(DIRECT)
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def launch(self, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Asks for a container; the same `key` asks for the same one. Returns it, which has a `state`, or while that
        takes longer what leads to its command: `command`, an id."""
        return await self._row("POST", "containers/", json=dict(body), headers={"Idempotency-Key": key})

    async def command(self, id_: str) -> dict[str, Any]:
        return await self._row("GET", f"commands/{id_}/")

    async def container(self, id_: str) -> dict[str, Any]:
        return await self._row("GET", f"containers/{id_}/")

    async def named(self, name: str) -> dict[str, Any] | None:
        """The container of this name that lives, if there is one."""
        found = await self._ask("GET", "containers/", params={"name": name, "live": "true"})
        return next(iter(found["results"]), None)

    async def engine(self) -> str:
        """Which engine runs containers: `docker`, or `process`, where they are local processes."""
        found = await self._ask("GET", "nodes/")
        return str(found["results"][0]["engine"]) if found["results"] else ""

    async def output(self, id_: str) -> str:
        """The last lines that it has printed."""
        return str(await self._ask("GET", f"containers/{id_}/logs/", params={"tail": LAST_WORDS}))

    async def end(self, id_: str, grace: float = 0.0) -> None:
        """Ends it and takes it away; one that has ended or is gone already is no failure."""
        await self._unless_so(self._ask("POST", f"containers/{id_}/kill/", json={"grace": grace}))
        for _ in range(int((grace + ENDS_WITHIN) / LOOK_EVERY)):  # the answer may have been: not yet
            try:
                if is_over(await self.container(id_)):
                    break
            except Refused as refused:
                if refused.status == 404:
                    return
                raise
            await asyncio.sleep(LOOK_EVERY)
        await self._unless_so(self._ask("DELETE", f"containers/{id_}/"))

    async def _unless_so(self, asked: Awaitable[Any]) -> None:
        try:
            await asked
        except Refused as refused:
            if refused.status not in (404, 409):
                raise

    async def _row(self, method: str, path: str, **words: Any) -> dict[str, Any]:
        return dict(await self._ask(method, path, **words))

    async def _ask(self, method: str, path: str, **words: Any) -> Any:
        try:
            answer = await self._client.request(method, path, **words)
        except httpx.TransportError as error:
            raise Away(f"The GPU appliance at {self._url} does not answer. Try again in a minute.") from error
        if answer.is_success:
            return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text
        message, code = _refusal(answer)
        if answer.status_code in (429, 502, 503, 504):
            raise Away(message)
        raise Refused(message, code, answer.status_code)


def _refusal(answer: httpx.Response) -> tuple[str, str]:
    """The message for a person, and the code: some answers come from a proxy before the appliance, and are no JSON."""
    try:
        error = answer.json()["error"]
        return str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        return f"The GPU appliance answered {answer.status_code} and did not say why. Tell its admin.", "unclear"


def is_over(container: Mapping[str, Any]) -> bool:
    return container["finished_at"] is not None


def standing(container: Mapping[str, Any]) -> str:
    """How it stands, in one sentence."""
    match container["state"]:
        case "suspended":
            place = container["queue_position"]
            where = f", {ordinal(place)} in the queue" if place else ""
            return f"Suspended{where}: {container['queue_reason'] or 'it waits for GPU memory.'}"
        case "paused" | "swapped" as state:
            return f"It is {state}, and goes on when it is resumed on the appliance's dashboard."
        case "running":
            return "Its container runs; the notebook server starts."
    return f"It is {container['state']}."


def ordinal(number: int) -> str:
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    if number <= len(words):
        return words[number - 1]
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"

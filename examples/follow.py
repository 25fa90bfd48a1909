#!/usr/bin/env python3
"""A container over REST alone: launches it, tells each state and why it waits, and ends it when its time is over.

    export GPUSHARE_URL=http://127.0.0.1:8000 GPUSHARE_TOKEN=…
    python follow.py [--gpu-memory 2GiB] [--seconds 600] IMAGE COMMAND…

It needs httpx (`pip install httpx`) and nothing of gpushare. The exit code is the program's; 128 + N if signal N ended
it, 125 if it never started.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from typing import Any

import httpx

LOOK_EVERY = 0.5  # seconds
GRACE = 5.0  # seconds from SIGTERM to SIGKILL
NEVER_STARTED = 125  # as docker's exit code


class Refused(Exception):
    """The appliance said no, in a sentence for people."""


class Appliance:
    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Token {token}"}
        # An answer says what really happened, so it may take some seconds.
        direct = dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]"))  # no proxy leads to this host
        self._http = httpx.Client(base_url=f"{url.rstrip('/')}/api/v1/", headers=headers, timeout=30, mounts=direct)

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Raises Refused; asks again when it was too often (429)."""
        while True:
            answer = self._http.request(method, path, **options)
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                break
            time.sleep(float(answer.headers["Retry-After"]))
        if answer.is_error:
            raise Refused(answer.json()["error"]["message"])
        return answer.json() if "json" in answer.headers["Content-Type"] else answer.text

    def launch(self, **fields: Any) -> dict[str, Any]:
        # With the key, the same request twice is one container: safe to repeat if the answer got lost.
        made: dict[str, Any] = self.ask(
            "POST", "containers/", json=fields, headers={"Idempotency-Key": uuid.uuid4().hex}
        )
        while "command" in made and "state" not in made:  # 202: it takes longer, such as the pull of an image
            time.sleep(LOOK_EVERY)
            command = self.ask("GET", f"commands/{made['command']}/")
            if command["outcome"] == "refused":
                raise Refused(command["message"])
            if command["done"]:
                made = self.container(command["container"])
        return made

    def container(self, identity: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"containers/{identity}/")
        return found

    def end(self, identity: str) -> None:
        self.ask("POST", f"containers/{identity}/kill/", json={"grace": GRACE, "note": "its time is over"})


def standing(container: dict[str, Any]) -> str:
    """How it stands; of one that waits, behind how many and for what."""
    if container["state"] != "suspended":
        return str(container["state"])
    return f"suspended, number {container['queue_position']} in the queue: {container['queue_reason']}"


def follow(appliance: Appliance, identity: str, seconds: float) -> dict[str, Any]:
    """Returns the container once it has ended, by itself or by us after so many seconds."""
    shown, over = "", time.monotonic() + seconds
    while True:
        container = appliance.container(identity)
        if (now := standing(container)) != shown:
            print(f"{time.strftime('%H:%M:%S')} {container['name']} is {now}", flush=True)
            shown = now
        if container["finished_at"] is not None:
            return container
        if time.monotonic() > over:
            appliance.end(identity)
            over = float("inf")
        time.sleep(LOOK_EVERY)


def main() -> int:
    parser = argparse.ArgumentParser(description="Launch a container over REST and follow it to its end.")
    parser.add_argument("--gpu-memory", default="1GiB", help="the quota on its GPU")
    parser.add_argument("--seconds", type=float, default=600.0, help="end it after this long")
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    appliance = Appliance(os.environ["GPUSHARE_URL"], os.environ["GPUSHARE_TOKEN"])
    try:
        made = appliance.launch(image=asked.image, command=asked.command, gpu_memory=asked.gpu_memory)
    except Refused as refused:
        print(f"not launched: {refused}", file=sys.stderr)
        return NEVER_STARTED
    try:
        ended = follow(appliance, made["id"], asked.seconds)
    except KeyboardInterrupt:
        appliance.end(made["id"])
        ended = follow(appliance, made["id"], float("inf"))
    print(appliance.ask("GET", f"containers/{made['id']}/logs/?follow=1"), end="")
    return NEVER_STARTED if ended["exit_code"] is None else int(ended["exit_code"])


if __name__ == "__main__":
    sys.exit(main())

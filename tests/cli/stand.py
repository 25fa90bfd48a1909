"""`gpushare top` on a screen, and answers of REST that are made up: more than an appliance of a test would have."""

import json
import re
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cli.support import ENTRY, environment
from tests.support.terminal import Screen

GIB = 2**30
LEFT = b"\x1b[?1049l"


def top(environ: dict[str, str], rows: int = 24, columns: int = 80) -> Screen:
    env = environment(environ)
    del env["COLUMNS"]
    return Screen([*ENTRY, "top", "--interval", "0.2"], env, rows, columns)


def has(word: str) -> Any:
    return lambda lines: any(word in line for line in lines)


def row(lines: list[str], name: str) -> int:
    return next(at for at, line in enumerate(lines) if re.search(rf"\b{re.escape(name)}\b", line))


def leaves(screen: Screen, key: str = "q", code: int = 0) -> None:
    """Everything is as before, and nothing was said."""
    screen.type(key)
    assert screen.exit_code() == code
    is_whole(screen)


def is_whole(screen: Screen) -> None:
    assert screen.settings() == screen.before
    assert b"".join(screen.written).endswith(b"\x1b[?7h\x1b[?25h" + LEFT)


def container(number: int, **more: Any) -> dict[str, Any]:
    gpu = {"uuid": "GPU-0", "quota": GIB, "granted": 0, "used": number << 20, "peak": number << 20,
           "held_back_lately": 0, "had_lately": None}  # fmt: skip
    return {
        "id": f"{number:08x}-0000-4000-8000-000000000000", "name": f"job-{number:03}", "owner": f"user-{number % 7}",
        "image": "pytorch/pytorch:2.4", "state": "running", "gpus": [gpu], "created_at": "2026-11-20T10:00:00+00:00",
        "started_at": "2026-11-20T10:00:00+00:00", "suspended_since": None, "queue_position": None, "idle_since": None,
        "exit_code": None, "gave_way": "", "gave_way_to": "", **more,
    }  # fmt: skip


def waiting(number: int, **more: Any) -> dict[str, Any]:
    since = datetime.now(UTC).isoformat()
    return {"position": number, "name": f"wait-{number}", "owner": "ada", "bytes": GIB, "since": since,
            "reason": "Needs 1 GiB; 0 bytes is free.", "id": f"w{number}", **more}  # fmt: skip


CARD = {"index": 0, "uuid": "GPU-0", "name": "NVIDIA H200", "most": 140 * GIB, "capacity": 139 * GIB, "charged": GIB,
        "free": 138 * GIB, "utilisation": 40}  # fmt: skip


class Stand:
    """Answers as REST does, with what a test says."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {"gpus": [CARD], "containers": [], "queue": []}
        self.answers = threading.Event()  # while it is set
        self.answers.set()
        self.asked = threading.Event()
        stand = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand.asked.set()
                stand.answers.wait()
                body = json.dumps({"results": stand.lists[self.path.split("/")[3]], "next": None}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.server.daemon_threads = True
        self.environ = {"GPUSHARE_URL": f"http://127.0.0.1:{self.server.server_port}", "GPUSHARE_TOKEN": "gps_x"}
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

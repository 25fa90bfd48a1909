"""What stands on a terminal between a container's output, and what is typed as a connection breaks."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest
import websockets.sync.client
from websockets.exceptions import ConnectionClosedError

from appliance.cli.attach import Attachment
from appliance.cli.client import Client, Json
from appliance.cli.console import Console, FrameKind
from appliance.cli.login import Login

NOWHERE = Login("http://127.0.0.1:1", "")
CONTAINER: Json = {"id": "1", "name": "broken", "exit_code": 0, "finished_at": None, "state": "running",
                   "suspended_seconds": 0, "suspended_since": None, "gpus": []}  # fmt: skip


def test_a_remark_stands_before_what_the_program_writes_after_it() -> None:
    """However long the loop, which looks at the container, waits for an answer."""
    shown: list[str] = []
    written = threading.Event()

    class Said(Console):
        def pass_on(self, container: Json, say: Callable[[str], None] = lambda line: None) -> bool:
            say("connected again")
            shown.append("what the program writes")
            written.set()
            return True

    class Slow(Client):
        def fetch(self, *words: object, **given: object) -> Json:
            assert written.wait(60)
            return CONTAINER | {"finished_at": "2026-11-28T20:00:00Z"}

        def get(self, *words: object, **given: object) -> Json:
            return {"results": []}

    client = Slow(NOWHERE)
    Attachment(
        client,
        lambda pending: CONTAINER,
        lambda what, line, container: shown.append(line),
        console=Said(client, interactive=False, tty=True),
    ).follow()
    assert shown == ["connected again", "what the program writes"]


def test_what_is_typed_as_a_connection_breaks_is_passed_on_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who types may hear before who reads that it has broken."""
    sent: list[bytes] = []
    reads: SimpleQueue[bytes | Exception] = SimpleQueue()
    opened, broken = threading.Event(), ConnectionClosedError(None, None)

    class Connection:
        def __init__(self, *words: object, **given: object) -> None:
            self.is_first = not opened.is_set()

        def __enter__(self) -> "Connection":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send(self, data: bytes) -> None:
            if self.is_first and data[0] == FrameKind.INPUT:
                raise broken
            sent.append(data)

        def recv(self) -> bytes:
            opened.set()
            match reads.get():
                case bytes(data):
                    return data
                case error:
                    raise error

    monkeypatch.setattr(websockets.sync.client, "connect", Connection)
    console = Console(Client(NOWHERE), interactive=False, tty=True)
    shows = threading.Thread(target=console.pass_on, args=[CONTAINER])
    shows.start()
    reads.put(bytes([FrameKind.OPEN]))
    assert opened.wait(60)
    console._pass(b"ls\r")  # as the thread of the keyboard does
    reads.put(broken)
    reads.put(bytes([FrameKind.OPEN]))
    reads.put(bytes([FrameKind.END]))
    shows.join(60)
    assert bytes([FrameKind.INPUT]) + b"ls\r" in sent

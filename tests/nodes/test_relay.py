"""Output and terminals of containers on other hosts than the web side's: over the link that each node dials."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.appliance import until
from tests.support.cluster import Cluster
from tests.support.constants import with_constants
from tests.support.eventually import PATIENCE
from tests.support.running import runs, seconds
from web.console.frames import FrameKind

MIB = 2**20
ONE_MIB = "head -c 1048576 /dev/zero | tr '\\0' x | fold -w 63"


def launched(cluster: Cluster, *command: str, node: str = "large", **fields: Any) -> Any:
    body = {"image": "local", "command": command, "gpu_memory": "128MiB", "node": node, **fields}
    made = cluster.api("POST", "containers/", body)
    until(lambda: cluster.container(made)["state"] != "created")
    return made


def logs(cluster: Cluster, made: Any, query: str = "") -> str:
    def answered() -> httpx.Response | None:  # a busy node says that it is to be asked again
        answer = cluster.ask("GET", f"containers/{made['id']}/logs/{query}")
        return answer if answer.status_code != 503 else None

    answer = until(answered)
    assert answer is not None
    assert answer.status_code == 200, answer.text
    return answer.text


@contextmanager
def following(cluster: Cluster, made: Any) -> Iterator[Iterator[bytes]]:
    headers = {"Authorization": f"Token {cluster.admin()}"}
    url = f"{cluster.url}/api/v1/containers/{made['id']}/logs/?follow=1"
    with httpx.stream("GET", url, headers=headers, timeout=httpx.Timeout(30, read=120)) as answer:
        assert answer.status_code == 200, answer.read()
        yield answer.iter_raw()


@contextmanager
def terminal(cluster: Cluster, made: Any, kind: str = "exec") -> Iterator[ClientConnection]:
    address = f"{cluster.url.replace('http', 'ws', 1)}/ws/containers/{made['id']}/{kind}/"
    headers = {"Authorization": f"Token {cluster.admin()}"}
    with connect(address, origin=cluster.url, additional_headers=headers, open_timeout=PATIENCE) as socket:
        yield socket


def shown(socket: ClientConnection, until_: bytes) -> bytes:
    """What it prints, until this is in it."""
    found = b""
    while until_ not in found:
        message = socket.recv(PATIENCE)
        assert isinstance(message, bytes), message
        if message[0] in (FrameKind.OUTPUT, FrameKind.ERRORS):
            found += message[1:]
            with suppress(ConnectionClosed):  # it may have ended by now: what was sent before can still be read
                socket.send(bytes([FrameKind.TAKEN]) + (len(message) - 1).to_bytes(4, "big"))
    return found


def test_output_is_the_node_s_file_byte_by_byte(cluster: Cluster) -> None:
    made = launched(cluster, "sh", "-c", f"{ONE_MIB}; echo; echo the end")
    until(lambda: cluster.container(made)["state"] == "exited")
    path = cluster.home("large") / "logs" / f"{made['id']}.log"
    assert not (cluster.home("web") / "logs" / path.name).exists()
    assert logs(cluster, made) == path.read_text()
    assert logs(cluster, made, "?tail=1") == "the end\n"
    assert logs(cluster, made, "?follow=1&tail=1") == "the end\n"


def test_output_is_followed_as_it_comes_until_the_container_ends(cluster: Cluster) -> None:
    gate = cluster.folder / "go"
    os.mkfifo(gate)
    gate.chmod(0o666)
    made = launched(cluster, "sh", "-c", f"echo one; read -r line < {gate}; echo two")
    with following(cluster, made) as pieces:
        assert next(pieces) == b"one\n"
        gate.write_text("go\n")
        assert b"".join(pieces) == b"two\n"


def test_a_program_beside_it_and_its_exit_code(cluster: Cluster) -> None:
    made = launched(cluster, "sleep", "600", node="small")
    with terminal(cluster, made) as socket:
        socket.send(json.dumps({"command": ["sh", "-c", "read -r line; echo got $line; exit 7"], "interactive": True}))
        assert socket.recv(PATIENCE) == bytes([FrameKind.OPEN])
        socket.send(bytes([FrameKind.INPUT]) + b"something\n")
        assert shown(socket, b"\n") == b"got something\n"
        exit_code = next(message for message in socket if message[0] == FrameKind.EXIT)
        assert exit_code == bytes([FrameKind.EXIT, 0, 0, 0, 7])
    with terminal(cluster, made) as socket:
        socket.send(json.dumps({"command": ["/no/such"]}))
        refused = json.loads(socket.recv(PATIENCE))
    assert refused["error"]["code"] == "cannot_start" or refused["status"] < 500, refused


def test_an_end_of_the_line_ends_what_was_begun_on_the_node(cluster: Cluster) -> None:
    made, long = launched(cluster, "sleep", "600", node="small"), seconds()
    with terminal(cluster, made) as socket:
        socket.send(json.dumps({"command": ["sleep", long]}))
        assert socket.recv(PATIENCE) == bytes([FrameKind.OPEN])
        until(lambda: runs("sleep", long))
    until(lambda: not runs("sleep", long))


@pytest.mark.long
def test_a_killed_web_side_leaves_nothing_running_on_the_node(cluster: Cluster) -> None:
    made, long = launched(cluster, "sleep", "600", node="small"), seconds()
    with suppress(ConnectionClosed), terminal(cluster, made) as socket:
        socket.send(json.dumps({"command": ["sleep", long]}))
        assert socket.recv(PATIENCE) == bytes([FrameKind.OPEN])
        until(lambda: runs("sleep", long))
        cluster.kill("web")
        until(lambda: not runs("sleep", long))
    cluster.start_web()
    until(lambda: cluster.is_linked("small"))


@pytest.mark.long
def test_a_killed_node_ends_a_terminal_in_words_and_a_followed_log_goes_on_where_it_was(cluster: Cluster) -> None:
    gate = cluster.folder / "again"
    os.mkfifo(gate)
    gate.chmod(0o666)
    made = launched(cluster, "sh", "-c", f"echo one; read -r line < {gate}; echo two")
    with following(cluster, made) as pieces, terminal(cluster, made) as socket:
        assert next(pieces) == b"one\n"
        socket.send(json.dumps({"command": ["sleep", "600"]}))
        assert socket.recv(PATIENCE) == bytes([FrameKind.OPEN])
        cluster.kill("large")
        said = json.loads(socket.recv(PATIENCE))
        assert said["error"]["message"] == "The connection to the scheduler was lost. The container continues."
        until(lambda: "large" not in cluster.alive())
        away = cluster.ask("GET", f"containers/{made['id']}/logs/")
        assert (away.status_code, away.json()["error"]["code"]) == (503, "scheduler_away")
        assert 'The scheduler of "large" gave no sign of life since' in away.json()["error"]["message"]
        cluster.start("large")
        until(lambda: cluster.is_linked("large"))
        gate.write_text("go\n")
        assert b"".join(pieces) == b"two\n"


@contextmanager
def restarted(cluster: Cluster, node: str, **environ: str) -> Iterator[None]:
    """This node's scheduler has this in its environment meanwhile."""
    cluster.stop(node)
    cluster.start(node, **environ)
    until(lambda: cluster.is_linked(node))
    try:
        yield
    finally:
        cluster.stop(node)
        cluster.start(node)
        until(lambda: cluster.is_linked(node))


def test_who_comes_when_a_node_shows_as_much_as_it_may_is_refused_and_gets_the_next_place(cluster: Cluster) -> None:
    with restarted(cluster, "small", **with_constants({"scheduler.containers.consoles.relay.RELAYED": 1})):
        made = launched(cluster, "sh", "-c", "echo one; exec sleep 3600", node="small")
        url = f"{cluster.url}/api/v1/containers/{made['id']}/logs/"
        headers = {"Authorization": f"Token {cluster.admin()}"}
        with following(cluster, made) as pieces:
            assert next(pieces) == b"one\n"
            refused = httpx.get(url, headers=headers, timeout=60)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (429, "too_many_requests")
            assert error["message"] == "This host has too many open consoles and logs; try again later."
        until(lambda: httpx.get(url, headers=headers, timeout=60).text == "one\n")


def test_a_long_log_comes_no_faster_than_its_node_may_send(cluster: Cluster) -> None:
    made = launched(cluster, "sh", "-c", ONE_MIB, node="small")
    until(lambda: cluster.container(made)["state"] == "exited")
    with restarted(
        cluster, "small", **with_constants({"scheduler.containers.consoles.link.BYTES_A_SECOND": 256 << 10})
    ):
        begun = time.monotonic()
        assert len(logs(cluster, made)) > MIB
        assert time.monotonic() - begun > 1.5  # all but what goes at once takes 3 s


@pytest.mark.long
def test_a_long_log_is_whole_at_its_end(cluster: Cluster) -> None:
    made = launched(cluster, "sh", "-c", "sleep 0.1", node="small")
    until(lambda: cluster.container(made)["state"] == "exited")
    path = cluster.home("small") / "logs" / f"{made['id']}.log"
    piece = os.urandom(MIB // 2).hex().encode()
    path.write_bytes(piece * 100)
    headers = {"Authorization": f"Token {cluster.admin()}"}
    url = f"{cluster.url}/api/v1/containers/{made['id']}/logs/"
    got = 0
    with httpx.stream("GET", url, headers=headers, timeout=60) as answer:
        for data in answer.iter_raw(MIB):
            at = got % MIB
            assert data == (piece + piece)[at : at + len(data)]
            got += len(data)
    assert got == 100 * MIB

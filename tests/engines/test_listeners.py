"""What listens in a network namespace, by the kernel's word, and which process holds it."""

import os
import socket
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from scheduler.containers.consoles import listeners as module
from scheduler.containers.consoles.listeners import Listener, held, listeners, near


def found(server: socket.socket) -> list[Listener]:
    return [each for each in listeners() if each.inode == os.fstat(server.fileno()).st_ino]


@pytest.mark.parametrize(
    ("bound", "address", "reached_at"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0", "127.0.0.1"),
        ("::1", "::1", "::1"),
        ("::", "::", "::1"),
        ("::ffff:127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_listener_is_found_with_its_address(bound: str, address: str, reached_at: str) -> None:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.create_server((bound, 0), family=family, dualstack_ipv6="ffff" in bound) as server:
        (listener,) = found(server)
        assert (listener.address, listener.port) == (ip_address(address), server.getsockname()[1])
        assert listener.reached_at == reached_at
        assert listener in near(listener.port)
    assert listener not in [*listeners(), *near(listener.port)]


def test_of_very_many_listeners_some_are_looked_at_and_a_named_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is work for the process that decides, and a container may open as many as it has addresses and ports."""
    monkeypatch.setattr(module, "MOST", 3)
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
        assert len(listeners()) == 3
        for each in servers:
            (listener,) = near(each.getsockname()[1])
            assert listener.inode == os.fstat(each.fileno()).st_ino


def test_connections_are_no_listeners() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as other,
    ):
        (listener,) = found(server)
        assert not found(client)
        assert not found(other)
        assert [each for each in listeners() if each.port == listener.port] == near(listener.port) == [listener]


def test_a_holder_is_looked_for_once_and_looked_at_each_time() -> None:
    ours = os.getpid()
    server = socket.create_server(("127.0.0.1", 0))
    (listener,) = found(server)
    assert not listener.is_still_held(lambda pid: pid == ours)
    assert held([listener], lambda pid: False) == []
    assert held([listener], lambda pid: pid == ours) == [listener]
    assert listener.is_still_held(lambda pid: pid == ours)
    assert not listener.is_still_held(lambda pid: False)  # of another container by now
    number = server.detach()
    with open(os.devnull) as other:
        os.dup2(other.fileno(), number)  # another file by the same number
    assert not listener.is_still_held(lambda pid: pid == ours)
    os.close(number)

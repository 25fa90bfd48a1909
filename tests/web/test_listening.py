"""The appliance's own listener."""

import socket

import pytest
from django.core.management import CommandError

from appliance.running.listening import listen


def test_no_answer_waits_for_a_delayed_acknowledgement():
    """By the option, not by a clock: with Nagle's algorithm each answer on a kept connection takes 40 ms more."""
    with listen("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_said_with_what_to_do():
    with listen("127.0.0.1", 0) as listener:
        listener.listen()
        with pytest.raises(CommandError, match=r"running already\? Then open it .* choose another port: PORT="):
            listen("127.0.0.1", listener.getsockname()[1])

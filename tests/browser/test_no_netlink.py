"""Chromium runs where no netlink socket can be made: tests.support.chromium says why."""

import subprocess
import sys

ASK = """
import socket
from tests.support.chromium import without_netlink
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
without_netlink()
socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
socket.socketpair()
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
except OSError as error:
    print(error.errno)
"""


def test_no_netlink_socket_and_every_other():
    assert subprocess.check_output([sys.executable, "-c", ASK], text=True) == "97\n"

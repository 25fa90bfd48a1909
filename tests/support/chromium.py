#!/usr/bin/env python3
"""Debian's Chromium, as a program that does not see this machine's network interfaces come and go.

It ends every request under way with ERR_NETWORK_CHANGED when an address of any interface changes (Chromium's
net/base/address_tracker_linux.cc), as other tests' bridges and Swarms do: a page then stood there without its scripts.
Run as a program, this file refuses Chromium its netlink sockets (it goes on without, as online for ever).
"""

import ctypes
import os
import platform
import shutil
import socket
import struct
import sys

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or ""
CHROMIUM = PATH and __file__
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

NR_SOCKET = {"x86_64": 41, "aarch64": 198}
# linux/prctl.h, linux/seccomp.h, linux/filter.h
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # a word at an offset of seccomp_data; jumps over (if so, if not); the verdict
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # refused: | errno
EAFNOSUPPORT = 97


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def without_netlink() -> None:
    """No later socket of this process and its children is a netlink socket. Raises OSError."""
    instructions = [
        (LOAD, 0, 0, 0),  # the system call's number
        (EQUAL, 0, 3, NR_SOCKET[platform.machine()]),
        (LOAD, 0, 0, 16),  # its first argument's lower half: the family
        (EQUAL, 0, 1, socket.AF_NETLINK),
        (RETURN, 0, 0, REFUSE | EAFNOSUPPORT),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *one) for one in instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    program = Filter(len(instructions), code)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "no filter for system calls can be set")


if __name__ == "__main__":
    without_netlink()
    os.execv(PATH, [PATH, *sys.argv[1:]])

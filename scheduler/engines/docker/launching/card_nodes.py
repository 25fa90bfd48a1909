"""Makes and removes the device node of a card inside a container that runs: `card_nodes.py PID give|take PATH`.

It enters the mount namespace of the container's first process, with rights that nothing inside has: the device rule of
a container allows every card's node, and only the nodes of its own cards are there (options.py); it cannot make one.
`PATH` is the host's node. To take it, every name of it in the container's /dev goes: one could have been renamed there,
or linked; anywhere else would be another file system, to which a node can only be copied by making one.

Standard library only: it is started with `python -I -S`.
"""

import ctypes
import os
import stat
import sys

CLONE_NEWNS = 0x00020000  # setns(2)


def enter(pid: int) -> None:
    """Raises OSError."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "its mount namespace cannot be entered")


def is_node(path: str, device: int) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == device


def give(path: str, device: int) -> None:
    """Raises OSError: FileExistsError if something else has its name."""
    if not is_node(path, device):
        os.umask(0)
        os.mknod(path, stat.S_IFCHR | 0o666, device)


def take(path: str, device: int) -> None:
    """Raises OSError."""
    top = os.path.dirname(path)
    here = os.lstat(top).st_dev
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if os.lstat(os.path.join(folder, name)).st_dev == here]
        for name in names:
            if is_node(each := os.path.join(folder, name), device):
                os.unlink(each)


def main() -> None:
    pid, what, path = sys.argv[1:]
    try:
        device = os.stat(path).st_rdev
        enter(int(pid))
        (give if what == "give" else take)(path, device)
    except OSError as error:
        sys.exit(f"{error.filename or path}: {error.strerror}")


main()

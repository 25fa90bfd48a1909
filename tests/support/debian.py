"""An empty Debian in a folder, with a view of the file system of its own; network and processes are this machine's.

As root. The folder is made by debootstrap, from the mirror that it knows, and copied for each test.
"""

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.appliance import ROOT
from tests.support.eventually import until

BASE = ROOT / ".build" / "debian"
# `/` has to be a mount, as in every container: the web process has mounts of its own. In /dev/shm everybody may write.
ENTER = """
mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc && mount --rbind /dev dev &&
mount -t tmpfs -o mode=1777 tmpfs dev/shm && mkdir .old &&
pivot_root . .old && umount -l /.old && rmdir /.old && touch /tmp/entered && exec /bin/sleep infinity
"""


def base(release: str) -> Path:
    """Made once, by the first of a run's processes that asks, and kept in .build."""
    folder = BASE / release
    BASE.mkdir(parents=True, exist_ok=True)
    with (BASE / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            half = BASE / f"{release}.half"
            shutil.rmtree(half, ignore_errors=True)
            words = ["debootstrap", "--variant=minbase", release, str(half)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            half.rename(folder)
    return folder


class Debian:
    def __init__(self, root: Path, release: str = "bookworm") -> None:
        self.root = root
        subprocess.run(["cp", "-a", str(base(release)), str(root)], check=True)
        shutil.copyfile("/etc/resolv.conf", root / "etc" / "resolv.conf")
        self._started: list[subprocess.Popen[bytes]] = []
        self._keeper = subprocess.Popen(["unshare", "--mount", "--propagation=private", "sh", "-c", ENTER, str(root)])
        until((root / "tmp" / "entered").exists)

    def _words(self, words: tuple[str, ...]) -> list[str]:
        return ["nsenter", f"--target={self._keeper.pid}", "--mount", "--wdns=/", *words]

    def _environ(self, given: dict[str, str]) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root", **given}

    def run(self, *words: str, code: int = 0, **environ: str) -> str:
        """What it said, errors too. Any other exit code than `code` fails the test."""
        done = subprocess.run(
            self._words(words), env=self._environ(environ), text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-3000:]}"
        return done.stdout

    def start(self, *words: str, **environ: str) -> subprocess.Popen[bytes]:
        """In the background; what it says is in /tmp/log there."""
        with (self.root / "tmp" / "log").open("ab") as log:
            process = subprocess.Popen(self._words(words), env=self._environ(environ), stdout=log, stderr=log)
        self._started.append(process)
        return process

    def log(self) -> str:
        return (self.root / "tmp" / "log").read_text()

    def close(self) -> None:
        """Ends every process that has this view, and the view with them."""
        ours = os.readlink(f"/proc/{self._keeper.pid}/ns/mnt")
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "ns" / "mnt") == ours:
                    os.kill(int(process.name), signal.SIGKILL)
        for child in (*self._started, self._keeper):
            child.kill()
            child.wait(10)


@contextmanager
def a_debian(root: Path, release: str = "bookworm") -> Iterator[Debian]:
    debian = Debian(root, release)
    try:
        yield debian
    finally:
        debian.close()
        shutil.rmtree(root)

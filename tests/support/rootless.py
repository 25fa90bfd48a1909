"""Docker without root: a real dockerd, within rootlesskit, of an ordinary user whom the host does not know.

    with rootless() as engine:
        Appliance(engine.home, within=engine.as_ada, GPUSHARE_DOCKER_HOST=engine.address)

The user is made of files that are mounted over the host's within a namespace. No network is given to it: with
`--net=host` rootlesskit needs no more than newuidmap.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.dockerd import Dockerd, have_dockerd
from tests.support.host import ROOT
from tests.support.tables import begin_with_tables

ADA = 4711  # user and group
LINES = {
    "passwd": f"ada:x:{ADA}:{ADA}::{{home}}:/bin/sh",
    "group": f"ada:x:{ADA}:",
    "subuid": "ada:500000:65536",
    "subgid": "ada:500000:65536",
}


class Rootless(Dockerd):
    """`as_ada`: a command that becomes the one that follows it, as the user. `home`: for an appliance of hers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.chmod(0o755)
        for name in ("her", "run", "kept"):
            (folder / name).mkdir()
        for name, line in LINES.items():
            (folder / name).write_text(f"{Path('/etc', name).read_text()}{line.format(home=folder / 'her')}\n")
        self.home = folder / "var"
        self.home.mkdir(mode=0o750)
        begin_with_tables(self.home / "database/gpushare.sqlite3")
        for path in (folder, folder / "her", folder / "run", self.home, *self.home.rglob("*")):
            os.chown(path, ADA, ADA)
        lines = [*(f"mount --bind {folder / name} /etc/{name}" for name in LINES), *_opened(folder / "kept")]
        become = f"exec setpriv --reuid={ADA} --regid={ADA} --clear-groups --inh-caps=-all"
        her = f"env HOME={folder / 'her'} XDG_RUNTIME_DIR={folder / 'run'}"
        script = " && ".join([*lines, f'{become} {her} "$@"'])
        self.as_ada = ["unshare", "--mount", "sh", "-c", script, "as-ada"]

    def start(self) -> None:
        super().start()
        # Docker 26.1 asks there for what /version says, and fails at the answer of a kit that gives no network.
        (self.folder / "run/kit/api.sock").unlink()

    def _before(self) -> list[str]:
        kit = ["--net=host", "--copy-up=/etc", "--copy-up=/run", "--propagation=rslave"]
        # What --copy-up leaves there are links to the host's, which are root's.
        own = ["sh", "-c", 'rm -f /run/docker /run/containerd && exec "$@"', "own"]
        return [*self.as_ada, "rootlesskit", f"--state-dir={self.folder / 'run/kit'}", *kit, *own]


def _opened(kept: Path) -> list[str]:
    """Commands by which this Python and this tree are seen also where others may not enter a folder above, as /root."""
    closed = {}
    for path in (Path(sys.base_prefix).resolve(), ROOT):
        if above := next((each for each in reversed(path.parents) if not each.stat().st_mode & 1), None):
            closed[path] = above
    holds = {path: kept / str(number) for number, path in enumerate(closed)}
    return [
        *(f"mkdir -p {hold} && mount --bind {path} {hold}" for path, hold in holds.items()),
        *(f"mount -t tmpfs -o mode=755 none {above}" for above in dict.fromkeys(closed.values())),
        *(f"mkdir -p {path} && mount --bind {hold} {path}" for path, hold in holds.items()),
    ]


def why_not_rootless() -> str:
    """Why no Docker engine can be run by an ordinary user here; empty if one can."""
    if why_not := have_dockerd():
        return why_not
    for program, package in (("rootlesskit", "rootlesskit"), ("newuidmap", "uidmap")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: {package})"
    her = f"setpriv --reuid={ADA} --regid={ADA} --clear-groups"
    words = f"{her} unshare --user --map-root-user true".split()
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"only root may make user namespaces here: {made.stderr.strip()}" if made.returncode else ""


@contextmanager
def rootless() -> Iterator[Rootless]:
    """A running one, taken away at the end."""
    engine = Rootless(Path(tempfile.mkdtemp(prefix="rootless-")))
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(engine.folder, ignore_errors=True)

"""README's first commands on an empty Debian, with the packages that README names and no other.

Each case is a newcomer: with the distribution's own Python, as root or not, with a closed umask, behind a proxy.
`.ci/run` has one of them at each change, `make deb-test` has all.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.appliance import ROOT
from tests.support.debian import Debian, a_debian
from tests.support.proxy import Proxy, a_proxy, environ_of

pytestmark = [
    pytest.mark.debian,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="needs root and debootstrap"),
]
# How this machine reaches the package registries; all of it may be missing.
NETWORK = ("PIP_", "NPM_CONFIG_", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
FILES = ("/etc/pip.conf", "/etc/xdg/pip", "/etc/ssl/certs/ca-certificates.crt")
OWN_FILES = (".config/pip", ".pip", ".npmrc")


def commands() -> list[str]:
    """What README's "Try it" has one type."""
    block = (ROOT / "README.md").read_text().partition("## Try it")[2].partition("```console\n")[2].partition("```")[0]
    return [line.partition("#")[0].removeprefix("$ ").strip() for line in block.splitlines()]


INSTALL, DEMO, TEST = commands()
FOLDER = "gpu share"  # a name as people choose them
TESTS = "tests/core tests/appliance/test_log_lines.py"  # the latter depends on when a Python imports its own modules


class Newcomer:
    def __init__(self, debian: Debian, user: str, umask: str, **environ: str) -> None:
        self.debian, self.user, self.umask = debian, user, umask
        self.home = "/root" if user == "root" else f"/home/{user}"
        self.environ = {name: value for name, value in os.environ.items() if name.upper().startswith(NETWORK)}
        self.environ |= environ | {"HOME": self.home}

    def reach_registries(self) -> None:
        for name in FILES:
            _copy(Path(name), self.debian.root / name.lstrip("/"))
        for name in OWN_FILES:
            _copy(Path.home() / name, self.debian.root / self.home.lstrip("/") / name)
        self.debian.run("chown", "-R", f"{self.user}:", self.home)

    def clone(self) -> None:
        """What git would have made there, of the files as they are here."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
        archive = self.debian.root / "tmp" / "clone.tar"
        subprocess.run(
            ["tar", "--null", "-T-", "--ignore-failed-read", "-cf", archive], cwd=ROOT, check=True, input=listed.stdout
        )
        self.typed(
            f"mkdir '{FOLDER}' && tar -x --no-same-permissions --no-same-owner -f /tmp/clone.tar -C '{FOLDER}'", "~"
        )

    def typed(self, command: str, folder: str = f"~/'{FOLDER}'", **environ: str) -> str:
        words = ["sh", "-c", f"umask {self.umask} && cd {folder} && {command}"]
        if self.user != "root":
            words = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups", *words]
        return self.debian.run(*words, **self.environ, **environ)


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy | None]:
    with a_proxy() if request.param == "proxy" else nullcontext() as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("release", "user", "umask", "proxy"),
    [  # of any three of the four, every combination
        ("bookworm", "root", "022", "direct"),
        ("bookworm", "root", "077", "proxy"),
        ("bookworm", "ada", "022", "proxy"),
        ("bookworm", "ada", "077", "direct"),
        ("trixie", "root", "022", "proxy"),
        ("trixie", "root", "077", "direct"),
        ("trixie", "ada", "022", "direct"),
        ("trixie", "ada", "077", "proxy"),
    ],
    indirect=["proxy"],
)
def test_the_first_commands_work(release: str, user: str, umask: str, proxy: Proxy | None, tmp_path: Path) -> None:
    with a_debian(tmp_path / "root", release) as debian:
        newcomer = Newcomer(debian, user, umask, **(environ_of(proxy.url) if proxy else {}))
        debian.run("apt-get", "update", "-q")
        debian.run(
            "sh", "-c", f"{INSTALL.removeprefix('sudo ').replace('install', 'install -yq --no-install-recommends')}"
        )
        if user != "root":
            debian.run("useradd", "--create-home", user)
        newcomer.reach_registries()
        newcomer.clone()
        if (user, umask) == ("ada", "077"):  # as a first `make` leaves it that was interrupted
            newcomer.typed("python3 -m venv --without-pip .venv")
        newcomer.typed("make setup")
        played = newcomer.typed(DEMO, DEMO_EXIT="1", PORT="0")
        assert "Every step was observed" in played, played
        assert " passed" in newcomer.typed(f"{TEST} TESTS='{TESTS}'")
        for name in proxy.asked if proxy else ():
            assert not name.startswith(("localhost", "127.", "::1")), "a request to this host went through the proxy"

"""The package on an empty Debian, from the first command to the last: each test is the next step (`make deb-test`).

Nobody is systemd here. So each service is started by the ExecStart of its unit, with the file of its settings, and
what prerm and postinst do to running services (`deb-systemd-invoke`) is not seen; tests/appliance/test_units.py has
systemd itself judge the units.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance import VERSION
from tests.support.appliance import ROOT
from tests.support.debian import Debian, a_debian
from tests.support.eventually import until
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.debian,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="needs root and debootstrap"),
]
NEXT = f"{VERSION}+1"
PACKAGES = ROOT / ".build" / "packages"
UNITS = "/usr/lib/systemd/system"
ENV = "/etc/gpushare/gpushare.env"
GIB = 1 << 30


def readme() -> list[str]:
    """The commands of README's section on a GPU host. Without sudo: nobody but root is there."""
    section = (ROOT / "README.md").read_text().partition("## Use it on a GPU host")[2]
    block = section.partition("```console\n")[2].partition("```")[0]
    return [line.partition("#")[0].removeprefix("$ ").removeprefix("sudo ").strip() for line in block.splitlines()]


MAKE, INSTALL, DOCTOR, TOKEN = readme()


class Installed:
    """The host, and what runs there."""

    def __init__(self, debian: Debian) -> None:
        self.debian = debian
        self.begun = time.monotonic()
        self.services: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30, follow_redirects=True)

    def path(self, path: str) -> Path:
        return self.debian.root / path.lstrip("/")

    def typed(self, command: str, code: int = 0) -> str:
        """What README says, in a folder that a checkout might be."""
        return self.debian.run("sh", "-c", f"cd /root && {command}", code=code)

    def install(self, version: str) -> str:
        """As README says; nobody is asked anything, and no Docker is fetched."""
        folder = self.path("/root/.build/packages")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (package,) = PACKAGES.glob(f"gpushare_{version}_*.deb")
        shutil.copy(package, folder)
        conf = 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n'
        self.path("/etc/apt/apt.conf.d/90test").write_text(conf)
        return self.typed(INSTALL)

    def set(self, **values: str) -> None:
        env = self.path(ENV)
        text = env.read_text()
        for name, value in values.items():
            text, found = re.subn(rf"(?m)^#?{name}=.*", f"{name}={value}", text)
            assert found == 1, name
        env.write_text(text)

    def command(self, unit: str) -> list[str]:
        """A unit's, in its folder, with its file of settings and as its user."""
        text = self.path(f"{UNITS}/{unit}.service").read_text()
        said = dict(re.findall(r"(?m)^(ExecStart|WorkingDirectory|EnvironmentFile|User)=(.*)", text))
        words = ["env", f"--chdir={said['WorkingDirectory']}"]
        words += [
            line for line in self.path(said["EnvironmentFile"]).read_text().splitlines() if re.match(r"\w+=", line)
        ]
        if "User" in said:
            words += ["setpriv", f"--reuid={said['User']}", f"--regid={said['User']}", "--clear-groups"]
        return [*words, *shlex.split(said["ExecStart"])]

    def start(self, *units: str) -> None:
        self.services = [self.debian.start(*self.command(unit)) for unit in units]
        try:
            until(self._answers, within=90)
        except AssertionError:
            raise AssertionError(self.debian.log()[-3000:]) from None

    def _answers(self) -> bool:
        assert all(service.poll() is None for service in self.services), self.debian.log()[-3000:]
        try:
            return self.http.get("/login/").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        for service in reversed(self.services):
            service.send_signal(signal.SIGTERM)
            assert service.wait(60) in (0, -signal.SIGTERM)  # either is a clean end to systemd
        self.services = []

    def gpushare(self, *words: str, code: int = 0) -> str:
        return self.debian.run("gpushare", *words, code=code)

    def api(self, path: str, **asked: str) -> Any:
        token = self.path("/var/lib/gpushare/admin-token").read_text().strip()
        return self.http.get(f"/api/v1/{path}", params=asked, headers={"Authorization": f"Token {token}"}).json()

    def named(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api("containers/", name=name)["results"][0]
        return found

    def state(self, name: str) -> str:
        return str(self.named(name)["state"])


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def host(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Installed]:
    subprocess.run(["packaging/deb/build", sys.executable, NEXT], cwd=ROOT, check=True, capture_output=True)
    try:
        with a_debian(tmp_path_factory.mktemp("debian") / "root", request.param) as debian:
            host = Installed(debian)
            yield host
            host.http.close()
    finally:
        for package in PACKAGES.glob(f"gpushare_{NEXT}_*.deb"):
            package.unlink()  # README's command takes what lies there


def test_it_installs_on_an_empty_debian(host: Installed) -> None:
    assert MAKE == "make deb"
    host.debian.run("apt-get", "update")
    output = host.install(VERSION)
    assert "gpushare doctor" in output
    assert host.debian.run("gpushare", "--version") == f"gpushare {VERSION}\n"
    assert "gpushare-web" in host.path("/etc/passwd").read_text()
    enabled = {path.name for path in host.path("/etc/systemd/system").glob("*.wants/gpushare*")}
    assert enabled == {"gpushare.service", "gpushare-backup.timer"}
    for folder, mode in (("/var/lib/gpushare", 0o750), ("/var/backups/gpushare", 0o700), (ENV, 0o600)):
        assert host.path(folder).stat().st_mode & 0o777 == mode, folder


def test_without_a_card_it_says_so_and_simulates_none(host: Installed) -> None:
    host.set(PORT=str(host.port))
    output = host.debian.run(*host.command("gpushare"), code=1)
    assert "NVML does not answer" in output
    assert "Load the driver" in output
    assert re.search("(?m)^BAD +driver", host.typed(DOCTOR, code=1))


def test_it_starts_and_answers(host: Installed) -> None:
    host.set(GPUSHARE_GPUS="sim:1x5GiB", GPUSHARE_ENGINE="process")
    host.start("gpushare")
    took = time.monotonic() - host.begun
    print(f"\nfrom the first command on an empty Debian to the dashboard: {took:.0f} s")
    assert "0 wrong" in host.gpushare("doctor")


def test_the_web_process_has_no_rights(host: Installed) -> None:
    up = host.services[0].pid
    children = Path(f"/proc/{up}/task/{up}/children").read_text().split()
    users = {re.findall(r"(?m)^Uid:\t(\d+)", Path(f"/proc/{child}/status").read_text())[0] for child in children}
    (number,) = re.findall(r"gpushare-web:x:(\d+)", host.path("/etc/passwd").read_text())
    assert users == {"0", number}


def test_the_admin_signs_in(host: Installed) -> None:
    token = host.typed(TOKEN).strip()
    host.http.get("/login/")
    fields = {"username": "admin", "password": token, "csrfmiddlewaretoken": host.http.cookies["csrftoken"]}
    page = host.http.post("/login/", data=fields, headers={"Origin": str(host.http.base_url).rstrip("/")})
    assert page.status_code == httpx.codes.OK
    assert page.url.path == "/"
    scripts = re.findall(r'src="(/static/[^"]+)"', page.text)
    assert len(scripts) > 2
    for script in scripts:
        assert host.http.get(script).status_code == httpx.codes.OK, script


def test_containers_run_hold_and_wait(host: Installed) -> None:
    run = ("run", "--gpu-memory", "3GiB")
    assert "every byte is right" in host.gpushare(*run, "local", "workload", "--bytes", "1GiB")
    for name in ("holds", "waits"):
        hold = ("--check", "1MiB", "--hold", "3600")
        host.gpushare(*run, "-d", "--stay", "--name", name, "local", "workload", "--bytes", "2900MiB", *hold)
        wanted = "running" if name == "holds" else "suspended"
        until(lambda name=name, wanted=wanted: host.state(name) == wanted)
    assert host.gpushare("queue").count("waits") == 1


def test_prometheus_scrapes_it(host: Installed) -> None:
    token = host.path("/var/lib/gpushare/admin-token").read_text().strip()
    address = f"http://127.0.0.1:{host.port}/metrics"
    assert httpx.get(address).status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
    figures = httpx.get(address, headers={"Authorization": f"Bearer {token}"}).text
    (capacity,) = re.findall(r"(?m)^gpushare_gpu_memory_capacity_bytes\{.*\} (\S+)$", figures)
    assert float(capacity) == 5 * GIB


def test_its_nightly_backup_is_made(host: Installed) -> None:
    host.debian.run(*host.command("gpushare-backup"))
    (backup,) = host.path("/var/backups/gpushare").iterdir()
    assert backup.stat().st_mode & 0o777 == 0o600


def test_an_upgrade_ends_nothing_and_keeps_the_settings(host: Installed) -> None:
    before = host.path(ENV).read_text()
    host.stop()  # as prerm does
    host.install(NEXT)
    assert NEXT in host.debian.run("dpkg-query", "-W", "gpushare")
    assert host.path(ENV).read_text() == before
    host.start("gpushare")
    assert (host.state("holds"), host.state("waits")) == ("running", "suspended")
    host.gpushare("kill", "holds")
    until(lambda: host.state("waits") == "running")


def test_as_two_services_they_run_as_their_units_say(host: Installed) -> None:
    host.stop()
    host.set(GPUSHARE_SECRET_KEY=host.path("/var/lib/gpushare/secret-key").read_text().strip())
    host.start("gpushare-scheduler", "gpushare-web")
    until(lambda: "GPU-" in host.gpushare("gpus"))
    assert "every byte is right" in host.gpushare("run", "--gpu-memory", "1GiB", "local", "workload", "--bytes", "9MiB")
    host.gpushare("kill", "waits")
    until(lambda: host.state("waits") == "killed")


def test_what_was_wiped_comes_back(host: Installed) -> None:
    held = f"containers/{host.named('holds')['id']}/"
    host.stop()
    home = host.path("/var/lib/gpushare")
    token = (home / "admin-token").read_text()
    for path in home.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (backup,) = host.path("/var/backups/gpushare").iterdir()
    output = host.debian.run("gpushare-manage", "restore", f"/var/backups/gpushare/{backup.name}")
    assert "The audit log is whole" in output
    assert (home / "admin-token").read_text() == token
    host.start("gpushare")
    # It ran when the backup was made and is gone: `ps --all` lists only what the engine still has, records all.
    until(lambda: host.api(held)["finished_at"])
    assert host.api(held)["reason"]
    assert "holds" in host.gpushare("report", "--group-by", "container")
    host.stop()


def test_removed_it_keeps_settings_and_records(host: Installed) -> None:
    output = host.debian.run("apt-get", "remove", "-y", "gpushare")
    assert "containers that run go on" in output
    assert "not empty so not removed" not in output
    assert not host.path("/opt/gpushare").exists()
    assert host.path("/var/lib/gpushare/admin-token").exists()
    assert host.path(ENV).exists()


def test_purged_it_leaves_the_backups_and_the_user(host: Installed) -> None:
    output = host.debian.run("apt-get", "purge", "-y", "gpushare")
    assert "the backups stay in /var/backups/gpushare" in output
    left = host.debian.run("find", "/", "-xdev", "-name", "*gpushare*", "-not", "-path", "/proc/*").split()
    known = {path for path in left if path.startswith(("/var/backups/gpushare", "/tmp/", "/root/.build/"))}
    assert {*left} - known == set()
    assert "gpushare-web" in host.path("/etc/passwd").read_text()

"""`gpushare doctor`: each thing that can be made untrue here is, and is shown with what to do."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from django.utils import timezone

from appliance.doctor import CHECKS, cards, examine, host, services
from appliance.doctor.finding import Finding, State
from appliance.running.web_user import WebUser
from scheduler import gpus
from scheduler.monitors import health
from tests.support.appliance import ROOT
from tests.support.findings import is_fine, one
from tests.support.machine import make_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(settings) -> Iterator[Path]:
    """As short as sockets need it."""
    with TemporaryDirectory(prefix="gs-", dir="/tmp") as folder:
        settings.GPUSHARE_HOME = Path(folder)
        yield settings.GPUSHARE_HOME


# ---- the host ----


def test_a_missing_shim(settings, tmp_path):
    settings.GPUSHARE_BUILD = tmp_path
    assert "libgpushare.so" in one(host.versions).found


def test_a_home_that_is_open_to_everybody(home):
    assert is_fine(host.home)
    home.chmod(0o755)
    assert f"chmod o= {home}" in one(host.home).do


def test_a_home_that_cannot_be_written(settings):
    settings.GPUSHARE_HOME = Path("/proc/self/task")
    assert "GPUSHARE_HOME" in one(host.home).found
    assert "socket" in one(host.sockets).found


def test_sockets_work_however_deep_the_home_is(home, settings):
    settings.GPUSHARE_HOME = home / ("d" * 100)
    settings.GPUSHARE_HOME.mkdir()
    assert is_fine(host.sockets)


def test_a_user_who_is_not_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "1000" in one(host.rights, State.NOTE).found


def make_disk(monkeypatch, free, total=100 << 30, files=10**6):
    figures = SimpleNamespace(f_bavail=free, f_bfree=free, f_blocks=total, f_frsize=1, f_files=10**7, f_favail=files)
    monkeypatch.setattr(health.os, "statvfs", lambda path: figures)


def test_output_that_the_web_side_cannot_read(settings, home):
    settings.GPUSHARE_HOME, settings.GPUSHARE_WEB_USER = home, WebUser("web", 60706, 60706)
    assert is_fine(host.logs)
    logs = home / "logs"
    logs.mkdir()
    logs.chmod(0o755)
    (logs / "a.log").write_text("said")
    (logs / "a.log").chmod(0o644)
    assert is_fine(host.logs)
    (logs / "a.log").chmod(0o600)
    (logs / "b.log").touch(0o600)
    found = one(host.logs)
    assert f"web cannot read {logs}/a.log and 1 more." in found.found
    assert "chmod" in found.do
    settings.GPUSHARE_WEB_USER = None
    assert is_fine(host.logs)


@pytest.mark.parametrize(("free", "state"), [(2 << 30, State.NOTE), (100 << 20, State.WRONG)])
def test_a_disk_that_is_nearly_full(home, monkeypatch, free, state):
    make_disk(monkeypatch, free)
    assert "free at GPUSHARE_HOME" in one(host.disk, state).found


def test_a_disk_on_which_no_files_can_be_made(home, monkeypatch):
    make_disk(monkeypatch, 50 << 30, files=999)
    assert ", and 999 files." in one(host.disk).found


def test_a_disk_is_nearly_full_when_attention_says_so(home, monkeypatch):
    """By the same limit, and on a small disk by a tenth of it."""
    make_disk(monkeypatch, 3 << 30, total=20 << 30)
    assert is_fine(host.disk)
    make_disk(monkeypatch, 4 << 30, total=1000 << 30)
    assert "4 GiB of 1000 GiB" in one(host.disk, State.NOTE).found


def test_a_clock_that_was_set_back(settings):
    make_node(name=settings.GPUSHARE_NODE, seen_at=timezone.now() + timedelta(hours=2))
    assert "in the future" in one(host.clock).found


def test_few_descriptors(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 1024))
    assert "1024" in one(host.descriptors, State.NOTE).found


def test_a_pid_namespace_of_its_own():
    code = "import django; django.setup(); from appliance.doctor import host; print(*host.pid_namespace())"
    environ = os.environ | {"DJANGO_SETTINGS_MODULE": "appliance.settings"}
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environ).stdout
    assert "a PID namespace of its own" in output
    assert "--pid=host" in output


def test_control_groups_that_are_not_there_or_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    assert "no control groups" in one(host.cgroups, State.NOTE).found
    (tmp_path / "cgroup.controllers").touch()
    assert "version 2" in next(host.cgroups()).found
    assert is_fine(host.cgroups)
    monkeypatch.setattr(host.os, "access", lambda place, mode: False)
    assert "cannot be written" in one(host.cgroups, State.NOTE).found


def test_huge_pages_matter_where_memory_is_swapped(monkeypatch, tmp_path, settings):
    monkeypatch.setattr(host, "HUGE_PAGES", tmp_path / "enabled")
    settings.GPUSHARE_SWAP_MEMORY = None
    assert "madvise" in one(host.huge_pages, State.NOTE).do
    host.HUGE_PAGES.write_text("always madvise [never]")
    assert "off" in one(host.huge_pages, State.NOTE).found
    settings.GPUSHARE_SWAP_MEMORY = 0
    assert is_fine(host.huge_pages)
    settings.GPUSHARE_SWAP_MEMORY = None
    for enabled in ("always [madvise] never", "[always] madvise never"):
        host.HUGE_PAGES.write_text(enabled)
        assert is_fine(host.huge_pages)


def test_a_clock_that_nobody_keeps(monkeypatch):
    for state, kept in ((host.TIME_ERROR, False), (0, True)):
        library = type("Library", (), {"adjtimex": staticmethod(lambda _, answer=state: answer)})
        monkeypatch.setattr(host.ctypes, "CDLL", lambda name, made=library: made)
        if kept:
            assert is_fine(host.clock)
        else:
            assert "set-ntp true" in one(host.clock, State.NOTE).do


def test_ports_that_others_take(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(host, "EPHEMERAL", tmp_path / "range")
    settings.GPUSHARE_PORTS, settings.PORT = (20000, 29999), 8000
    assert is_fine(host.ports), "where the kernel does not say"
    host.EPHEMERAL.write_text("30000\t60999\n")
    assert is_fine(host.ports)
    host.EPHEMERAL.write_text("29999\t60999\n")
    assert "ip_local_reserved_ports=20000-29999" in one(host.ports, State.NOTE).do
    settings.PORT = 20000
    assert "20000 is one of them" in one(host.ports).found


# ---- GPUs and Docker ----


def test_a_docker_that_is_old_rootless_or_has_no_room(settings, monkeypatch):
    settings.GPUSHARE_ENGINE = "docker"
    info = {"ServerVersion": "29.0.0", "CgroupDriver": "systemd", "CgroupVersion": "2"}

    def has(more, components=()):
        monkeypatch.setattr(cards, "ask_docker", lambda address: (info | more, list(components)))

    has({})
    assert is_fine(cards.docker)
    has({"SecurityOptions": ["name=rootless"]})
    assert "rootless" in one(cards.docker, State.NOTE).found
    has({}, [{"Name": "runc", "Version": "1.0.0"}])
    assert "runc" in one(cards.docker, State.NOTE).found
    has({"DockerRootDir": "/"})
    monkeypatch.setattr(cards.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 30}))
    assert "docker system prune" in one(cards.docker, State.NOTE).do


def test_no_device_nodes_of_a_gpu(settings, monkeypatch):
    settings.GPUSHARE_GPUS, settings.GPUSHARE_ENGINE, settings.GPUSHARE_GPU_ACCESS = "nvidia", "docker", "raw"
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has them")
    monkeypatch.setattr(cards, "ask_docker", lambda address: ({"Runtimes": {}}, []))
    assert "no device nodes" in one(cards.gpu_access).found


@pytest.mark.parametrize(("wanted", "state"), [("nvidia", State.WRONG), ("auto", State.NOTE)])
def test_a_host_without_a_driver(settings, wanted, state):
    settings.GPUSHARE_GPUS = wanted
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has one")
    assert "nvidia-smi" in one(cards.driver, state).do


def test_the_simulated_card_that_stands_in_for_a_gpu_needs_no_access_to_one(settings, monkeypatch):
    settings.GPUSHARE_GPUS, settings.GPUSHARE_ENGINE = "auto", "docker"
    monkeypatch.setattr(gpus, "real_cards", lambda: 0)
    monkeypatch.setattr(cards, "ask_docker", lambda address: ({"Runtimes": {}}, []))
    assert is_fine(cards.gpu_access)


def test_gpus_that_the_scheduler_does_not_know(settings):
    settings.GPUSHARE_GPUS = "nvidia:6GiB"
    assert "nvidia:cap=6GiB" in one(cards.driver).found


@pytest.mark.parametrize(("engine", "state"), [("docker", State.WRONG), ("auto", State.NOTE)])
def test_a_docker_that_is_away(settings, tmp_path, engine, state):
    settings.GPUSHARE_DOCKER_HOST, settings.GPUSHARE_ENGINE = f"unix://{tmp_path}/none.sock", engine
    assert "systemctl start docker" in one(cards.docker, state).do


def test_what_is_not_used_is_not_missed(settings):
    settings.GPUSHARE_GPUS, settings.GPUSHARE_ENGINE = "sim:1x1GiB", "process"
    assert all(is_fine(check) for check in (cards.driver, cards.docker, cards.gpu_access))
    assert all(is_fine(check) for check in (services.redis, services.proxy, services.ldap, services.oidc))


def test_docker_without_nvidias_runtime(settings, monkeypatch):
    settings.GPUSHARE_GPUS, settings.GPUSHARE_ENGINE, settings.GPUSHARE_GPU_ACCESS = "nvidia", "docker", "runtime"
    monkeypatch.setattr(cards, "ask_docker", lambda address: ({"Runtimes": {"runc": {}}}, []))
    assert "nvidia-ctk runtime configure" in one(cards.gpu_access).do


def test_nvidia_s_hook_is_warned_of(settings, monkeypatch):
    settings.GPUSHARE_GPUS, settings.GPUSHARE_ENGINE, settings.GPUSHARE_GPU_ACCESS = "nvidia", "docker", "runtime"
    monkeypatch.setattr(cards, "ask_docker", lambda address: ({"Runtimes": {"nvidia": {}}}, []))
    assert "cdi generate" in one(cards.gpu_access, State.NOTE).do


@pytest.mark.parametrize(
    ("version", "gpus", "said"),
    [("560.35", 2, "570 or newer"), ("580.159.04", 2, ""), ("595.71.05", 2, "hang the host"),
     ("610.57", 2, "several threads"), ("580.159.04", 0, "sees no GPU")],
)  # fmt: skip
def test_a_driver_that_is_old_has_a_fault_or_sees_no_gpu_is_named(settings, monkeypatch, version, gpus, said):
    settings.GPUSHARE_GPUS = "nvidia"
    gives = {"nvmlInit": None, "nvmlShutdown": None, "nvmlSystemGetDriverVersion": version, "nvmlDeviceGetCount": gpus}
    for name, answer in gives.items():
        monkeypatch.setattr(cards.pynvml, name, lambda answer=answer: answer)
    if said:
        found = one(cards.driver, State.NOTE if gpus else State.WRONG)
        assert said in found.found + found.means
    else:
        assert is_fine(cards.driver)


def test_a_check_that_fails_itself_is_reported_as_wrong():
    def broken() -> Iterator[Finding]:
        raise ZeroDivisionError("by nothing")
        yield

    (found,) = examine((broken,))
    assert found.state == State.WRONG
    assert "ZeroDivisionError: by nothing" in found.found


def test_the_command_says_it_as_text_and_as_json_and_by_its_exit_code(home):
    environ = {**os.environ, "GPUSHARE_HOME": str(home), "GPUSHARE_GPUS": "sim:1x1GiB", "PORT": "0",
               "GPUSHARE_ENGINE": "process", "GPUSHARE_SWAP_MEMORY": "0"}  # fmt: skip
    environ.pop("DATABASE_URL", None)

    def doctor(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        code = "from appliance.cli import main; main()"
        command = [sys.executable, "-c", code, "doctor", *words]
        return subprocess.run(command, cwd=ROOT, env=environ | more, capture_output=True, text=True, check=False)

    healthy = doctor("--json")
    assert healthy.returncode == 0, healthy.stdout
    answer = json.loads(healthy.stdout)
    assert answer["ok"] is True
    assert {each["check"] for each in answer["findings"]} == {check.__name__ for check in CHECKS}
    ill = doctor(REDIS_URL="redis://127.0.0.1:1/0")
    assert ill.returncode == 1
    assert "BAD  redis: Redis does not answer" in ill.stdout
    assert "     → Start it, or look at REDIS_URL." in ill.stdout
    assert "1 wrong" in ill.stdout

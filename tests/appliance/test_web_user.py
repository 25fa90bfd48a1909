"""Started by root, the web process is a user without rights: strangers who got into it would get no further."""

import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.core.exceptions import ImproperlyConfigured

from appliance.running import web_user
from appliance.running.parts import CannotStart
from tests.cli.support import gpushare
from tests.support.appliance import ROOT, Appliance, until
from tests.support.eventually import PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to lose")

# Each deed of somebody who runs what they like in the web process, and what came of it.
TRIES = """
import ctypes, json, os, signal, socket, sys
home, database, checkout, scheduler, parent = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
libc = ctypes.CDLL(None, use_errno=True)
def called(name, *words):
    if getattr(libc, name)(*words) == -1:
        raise OSError(ctypes.get_errno(), name)
tries = {
    "admin's token": lambda: open(f"{home}/admin-token"),
    "key file": lambda: open(f"{home}/secret-key"),
    "containers' sockets": lambda: os.listdir(f"{home}/sockets"),
    "programs' folders": lambda: os.listdir(f"{home}/processes"),
    "scheduler's lock": lambda: open(f"{home}/scheduler.lock"),
    "the same, the scheduler's way": lambda: open(f"/proc/{scheduler}/root{home}/admin-token"),
    "scheduler's descriptors": lambda: os.listdir(f"/proc/{scheduler}/fd"),
    "scheduler's memory": lambda: open(f"/proc/{scheduler}/mem", "rb"),
    "signal to the scheduler": lambda: os.kill(scheduler, signal.SIGTERM),
    "signal to the parent": lambda: os.kill(parent, signal.SIGTERM),
    "trace of the scheduler": lambda: called("ptrace", 16, scheduler, 0, 0),
    "another database": lambda: os.rename(database, f"{database}.away"),
    "no database": lambda: os.unlink(database),
    "the mount above it": lambda: called("umount2", database.encode(), 2),
    "a log of its own making": lambda: open(f"{home}/logs/false.log", "w"),
    "another program": lambda: open(f"{checkout}/manage.py", "a"),
    "root again": lambda: os.setuid(0),
    "a low port": lambda: socket.socket().bind(("127.0.0.1", 1)) if LOW else os.setuid(0),
    "shadow": lambda: open("/etc/shadow"),
}
LOW = int(open("/proc/sys/net/ipv4/ip_unprivileged_port_start").read()) > 1
done = []
for name, deed in tries.items():
    try:
        deed()
        done.append(name)
    except OSError as error:
        pass
open(database, "r+b").close()  # this it may
os.listdir(f"{home}/logs")
print(json.dumps(done))
"""


@pytest.fixture
def appliance(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Appliance]:
    running = Appliance(tmp_path / "home", within=getattr(request, "param", ()))
    yield running
    if running.process.poll() is None:
        running.close()


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: words.strip() for name, _, words in (line.partition(":") for line in lines)}


def has_no_rights(pid: int) -> bool:
    said = status(pid)
    ids = {*said["Uid"].split(), *said["Gid"].split(), *said["Groups"].split()}
    capabilities = {int(said[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    return "0" not in ids and capabilities == {0} and said["NoNewPrivs"] == "1"


def test_the_web_process_has_no_rights_and_no_terminal_and_neither_after_it_died(appliance):
    assert status(appliance.parts()["scheduler"])["Uid"].split()[0] == "0"
    before = appliance.parts()["web"]
    assert has_no_rights(before)
    assert os.getsid(before) == before
    os.kill(before, signal.SIGKILL)
    after = until(lambda: (pid := appliance.parts().get("web", before)) != before and pid)
    until(lambda: has_no_rights(after))
    assert appliance.containers() == []


def test_from_within_the_web_process_nothing_of_the_scheduler_can_be_reached(appliance):
    appliance.launch("true")
    parts = appliance.parts()
    uid, gid = (status(parts["web"])[name].split()[0] for name in ("Uid", "Gid"))
    database = appliance.home / "database/gpushare.sqlite3"
    words = [appliance.home, database, ROOT, parts["scheduler"], appliance.process.pid]
    tried = subprocess.run(
        ["nsenter", f"--mount=/proc/{parts['web']}/ns/mnt", "setpriv", "--reuid", uid, "--regid", gid,
         "--clear-groups", "--bounding-set", "-all", "--no-new-privs",
         sys.executable, "-c", TRIES, *map(str, words)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(tried.stdout) == []
    assert appliance.parts() == parts


def test_it_shows_the_output_of_containers_and_carries_out_what_people_want(appliance):
    made = appliance.launch("sh", "-c", "echo said; sleep 600")
    until(lambda: output(appliance, made["id"]) == "said\n")
    assert appliance.api("POST", f"containers/{made['id']}/kill/", {})["state"] == "killed"


UMASK = ("sh", "-c", 'umask 077; exec "$0" "$@"')


@pytest.mark.parametrize("appliance", [UMASK], indirect=True)
def test_with_a_closed_umask_its_output_is_shown_and_what_cannot_be_read_is_an_error_with_its_cause(appliance):
    made = appliance.launch("sh", "-c", "echo said; umask")
    until(lambda: output(appliance, made["id"]) == "said\n0022\n")
    assert has_no_rights(appliance.parts()["web"])
    done = gpushare("run", "--gpu-memory", "64MiB", "local", "echo", "seen", environ=appliance.environ)
    assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr

    (appliance.home / "logs" / f"{made['id']}.log").chmod(0o600)
    error = json.loads(output(appliance, made["id"]))["error"]
    assert error["code"] == "output_unreadable"
    assert "Permission denied" in error["message"]
    for words in ((), ("-f",)):
        done = gpushare("logs", *words, made["id"], environ=appliance.environ)
        assert (done.returncode != 0, done.stdout) == (True, "")
        assert "Permission denied" in done.stderr

    (appliance.home / "logs").chmod(0o700)
    done = gpushare("run", "--gpu-memory", "64MiB", "local", "true", environ=appliance.environ)
    assert done.returncode == 125
    assert "Permission denied" in done.stderr


def output(appliance: Appliance, container: str) -> str:
    headers = {"Authorization": f"Token {appliance.token}"}
    return httpx.get(f"{appliance.url}/api/v1/containers/{container}/logs/", headers=headers, timeout=PATIENCE).text


def test_what_a_web_process_with_rights_left_is_there_for_one_without_and_the_other_way_round(tmp_path):
    appliance = Appliance(tmp_path / "home", GPUSHARE_WEB_USER="root")
    assert not has_no_rights(appliance.parts()["web"])
    made = appliance.launch("sh", "-c", "echo said")
    until(lambda: output(appliance, made["id"]) == "said\n")
    for user in ("", "daemon", "root"):
        appliance.crash()  # so that there are journals of whoever wrote last
        appliance._environ["GPUSHARE_WEB_USER"] = user
        appliance.start()
        assert has_no_rights(appliance.parts()["web"]) is (user != "root")
        assert output(appliance, made["id"]) == "said\n"
        assert appliance.launch("true", name=f"c-{user}")["name"] == f"c-{user}"
    appliance.close()


def test_the_port_may_be_one_that_only_root_can_have(appliance):
    appliance.crash()
    appliance.port = str(next(port for port in range(600, 1024) if is_free(port)))
    appliance.start()
    assert httpx.get(f"http://127.0.0.1:{appliance.port}/healthz", timeout=PATIENCE).status_code == 200
    assert has_no_rights(appliance.parts()["web"])


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


def test_a_user_who_cannot_write_the_database_is_refused_in_a_sentence_if_asked_for_and_else_reported(tmp_path):
    """Such as one that DATABASE_URL puts among root's own files."""
    elsewhere = {"DATABASE_URL": f"sqlite:///{tmp_path}/elsewhere.sqlite3"}
    environ = {**os.environ, **elsewhere, "GPUSHARE_HOME": str(tmp_path / "home"), "GPUSHARE_GPUS": "sim:1x1GiB",
               "GPUSHARE_ENGINE": "process", "PORT": "0", "GPUSHARE_WEB_USER": "daemon"}  # fmt: skip
    up = [sys.executable, "manage.py", "up"]
    ended = subprocess.run(up, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "CommandError: The web process cannot be daemon (it may not write " in ended.stderr
    appliance = Appliance(tmp_path / "home", **elsewhere)
    assert not has_no_rights(appliance.parts()["web"])
    appliance.close()
    assert "the web process stays root" in (tmp_path / "home.log").read_text()


@pytest.mark.parametrize("make", [os.link, os.symlink])
def test_a_database_that_is_another_file_is_refused_before_anything_is_written_to_it(tmp_path, make):
    """By a link root would be led to a file of somebody's choice, and give that to the web user."""
    (tmp_path / "home/database").mkdir(parents=True)
    (other := tmp_path / "other").touch(mode=0o600)
    make(other, tmp_path / "home/database/gpushare.sqlite3")
    environ = {**os.environ, "GPUSHARE_HOME": str(tmp_path / "home"), "PORT": "0"}
    up = [sys.executable, "manage.py", "up"]
    ended = subprocess.run(up, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "CommandError: " in ended.stderr
    assert "it has to be a file of its own" in ended.stderr
    assert (other.stat().st_size, other.stat().st_mode & 0o777, other.stat().st_gid) == (0, 0o600, os.getgid())


def test_a_program_behind_a_link_into_somebodys_own_folder_can_be_read(tmp_path):
    program, home = tmp_path / "own/program", tmp_path / "home"
    program.mkdir(parents=True)
    (program / "manage.py").write_text("read")
    home.mkdir()
    user = web_user.WebUser("test", 60999, 60999)
    web_user.share(home, user)
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        link = Path(open_to_all) / "link"
        link.symlink_to(program)
        if (pid := os.fork()) == 0:
            failed = 1
            with contextlib.suppress(OSError, CannotStart):
                web_user.become(user, home, None, link)
                failed = (os.getuid(), (link / "manage.py").read_text()) != (60999, "read")
            os._exit(failed)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_who_it_is():
    assert web_user.find("root") is None
    assert web_user.find("0") is None
    by_name, by_number = web_user.find("daemon"), web_user.find(str(pwd.getpwnam("daemon").pw_uid))
    assert by_name == by_number == web_user.WebUser("daemon", *pwd.getpwnam("daemon")[2:4])
    with pytest.raises(ImproperlyConfigured, match="this host has no such user"):
        web_user.find("nobody-of-this-name")


def test_nobody_elses_number_is_taken(monkeypatch):
    taken = {web_user.UNUSED, web_user.UNUSED + 1}
    real = pwd.getpwuid
    monkeypatch.setattr(pwd, "getpwuid", lambda number: real(0) if number in taken else real(number))
    monkeypatch.setattr(web_user, "USUAL", "nobody-of-this-name")
    found = web_user.find("")
    assert found is not None
    assert (found.uid, found.gid, found.given) == (web_user.UNUSED + 2, web_user.UNUSED + 2, False)


def test_without_root_nothing_changes(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert web_user.find("daemon") is None

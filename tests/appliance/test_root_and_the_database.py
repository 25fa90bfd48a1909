"""The web user can write the folder of the SQLite database: what it leaves there does no harm to root."""

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from appliance.running import web_user
from appliance.running.parts import CannotStart
from tests.support import web_users_database
from tests.support.eventually import until
from tests.support.tables import ROOT
from tests.support.web_users_database import WEB_USER, as_web_user, hot_journal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to lose")

COUNT = """
from web.models import Node
print(Node.objects.count())
"""
COUNT_AGAIN = """
import sys
from django.db import OperationalError, connection
from web.models import Node
print(Node.objects.count(), flush=True)
for line in sys.stdin:
    connection.close_if_unusable_or_obsolete()
    try:
        print(Node.objects.update(name="x"), flush=True)
    except OperationalError as error:
        print("OperationalError", flush=True)
"""


@pytest.fixture
def there(tmp_path: Path) -> tuple[Path, Path]:
    return web_users_database.home(tmp_path)


def run(home: Path, program: str = COUNT) -> subprocess.CompletedProcess[str]:
    process = web_users_database.root(home, program)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def pages(database: Path) -> int:
    return database.stat().st_size // 4096


def test_a_journal_that_the_web_user_leaves_has_root_delete_no_file(there, tmp_path):
    home, database = there
    (victim := tmp_path / "root's own").write_text("precious\n")
    as_web_user(database, f"cat > {database.name}-journal", hot_journal(victim, pages(database)))
    done = run(home)
    assert victim.exists(), done.stderr
    assert done.returncode == 0, done.stderr

    # The journal is one that SQLite believes: where root opens the same files itself, the file is gone.
    copy = tmp_path / "copy"
    shutil.copy(database, copy)
    Path(f"{copy}-journal").write_bytes(hot_journal(victim, pages(copy)))
    with closing(sqlite3.connect(copy)) as opened:
        opened.execute("SELECT * FROM web_node").fetchall()
    assert not victim.exists()


def test_a_shm_file_that_the_web_user_cuts_off_kills_no_process_of_root(there):
    home, database = there
    with web_users_database.root(home, COUNT_AGAIN) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "0\n"
        as_web_user(database, f"truncate -s 0 {database.name}-shm")
        said = []
        while "0\n" not in said:  # whatever came of the first question: a later one has a new helper
            process.stdin.write("\n")
            process.stdin.flush()
            said.append(process.stdout.readline())
            assert said[-1] in ("0\n", "OperationalError\n"), process.poll()
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        ("chmod 0 {0}", "unable to open database file"),
        ("rm {0}; mkfifo {0}", "OperationalError"),
        ("rm {0}; ln -s {1} {0}", "OperationalError"),
        ("rm {0}; mkdir {0}", "unable to open database file"),
        ("rm {0}", "no such table"),
    ],
)
def test_whatever_stands_in_the_place_of_the_database_root_gets_an_error_and_touches_no_file_of_its_own(
    there, tmp_path, deed, why
):
    home, database = there
    (victim := tmp_path / "root's own").write_bytes(database.read_bytes())
    before = victim.read_bytes()
    as_web_user(database, deed.format(database.name, shlex.quote(str(victim))))
    done = run(home)
    assert done.returncode == 1
    assert why in done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith("django.db.utils.OperationalError: ")
    assert victim.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"home", victim.name}


def test_a_link_that_leads_nowhere_has_root_make_no_file(there, tmp_path):
    home, database = there
    as_web_user(database, f"rm {database.name}; ln -s '{tmp_path}/made' {database.name}")
    assert run(home).returncode == 1
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("deed", ["rm {0}; mkfifo {0}", "rm {0}; ln -s /nowhere {0}"])
def test_a_start_refuses_what_is_no_file(there, deed):
    home, database = there
    as_web_user(database, deed.format(database.name))
    with pytest.raises(CannotStart, match="file of its own"):
        web_user.share(home, WEB_USER)


@pytest.mark.parametrize("deed", ["rm {0}", "chmod 0 {0}", "chmod 0 .", "rm {0}; mkfifo {0}"])
def test_a_web_process_does_not_stay_root_because_of_what_the_web_user_did_to_the_database(there, deed):
    """It starts again after it has died, and would be root until the next start."""
    home, database = there
    as_web_user(database, deed.format(database.name))
    user = web_user.WebUser(WEB_USER.name, WEB_USER.uid, WEB_USER.gid, given=False)
    child = os.fork()
    if not child:  # pragma: no cover - another process
        try:
            web_user.become(user, home, database, ROOT)
        except CannotStart:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(("group", "mode"), [(0, 0o1777), (WEB_USER.gid, 0o2770)])
def test_root_opens_no_database_where_everybody_or_a_group_can_write(there, group, mode):
    home, database = there
    os.chown(database.parent, 0, group)
    database.parent.chmod(mode)
    done = run(home)
    assert done.returncode == 1
    assert "Users other than root can write in " in done.stderr


def test_a_database_that_is_named_where_everybody_can_write_is_an_error_of_the_database(tmp_path):
    (open_to_all := tmp_path / "open").mkdir()
    open_to_all.chmod(0o1777)
    url = f"sqlite:///{open_to_all}/some.sqlite3"
    environ = {**os.environ, "GPUSHARE_HOME": str(tmp_path / "home"), "DATABASE_URL": url, "PORT": "0"}
    words = [sys.executable, "manage.py", "up"]
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Users other than root can write in " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(open_to_all.iterdir()) == []


def test_where_only_root_can_write_root_opens_the_database_itself(tmp_path):
    home, database = web_users_database.home(tmp_path)
    os.chown(database.parent, 0, 0)
    database.parent.chmod(0o700)
    done = run(home, "from django.db import connection; connection.ensure_connection(); print(connection.connection)")
    assert done.stdout.startswith("<sqlite3.Connection"), done.stderr


def test_a_backup_is_made_without_root_opening_the_database_and_restored_into_no_such_folder(there, tmp_path):
    home, database = there
    (victim := tmp_path / "root's own").write_text("precious\n")
    assert run(home, "from web.models import Node; Node.objects.create(name='first')").returncode == 0
    as_web_user(database, f"cat > {database.name}-journal", hot_journal(victim, pages(database)))
    environ = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | {
        "GPUSHARE_HOME": str(home)
    }

    def manage(*words: str) -> subprocess.CompletedProcess[str]:
        words = ("manage.py", *words)
        return subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True)

    (backups := tmp_path / "backups").mkdir()
    done = manage("backup", str(backups))
    assert done.returncode == 0, done.stderr
    assert victim.exists()
    (made,) = backups.iterdir()
    as_web_user(database, "rm -f * .c*")
    refused = manage("restore", str(made))
    assert "Another user can write the folder of the database" in refused.stderr
    shutil.rmtree(database.parent)
    restored = manage("restore", str(made))
    assert restored.returncode == 0, restored.stderr
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("SELECT name FROM web_node").fetchall() == [("first",)]


def test_sqlites_own_shell_is_not_started_by_root(there):
    home, _ = there
    done = run(home, "from django.core.management import call_command; call_command('dbshell')")
    assert "root does not open it with sqlite3" in done.stderr


def test_a_helper_ends_with_its_parent_though_a_child_of_that_holds_the_socket(there):
    home, _ = there
    program = """
import os, time
from django.db import connection
connection.ensure_connection()
if child := os.fork():
    print(connection.connection.helper.pid, child, flush=True)
time.sleep(600)
"""
    with web_users_database.root(home, program) as process:
        assert process.stdout
        helper, child = map(int, process.stdout.readline().split())
        try:
            uid = next(line for line in Path(f"/proc/{helper}/status").read_text().splitlines() if "Uid" in line)
            assert set(uid.split()[1:]) == {str(WEB_USER.uid)}
            process.send_signal(signal.SIGKILL)
            process.wait()
            until(lambda: not Path(f"/proc/{helper}/stat").exists() or "Z" in _state(helper))
        finally:
            os.kill(child, signal.SIGKILL)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


STORE = """
import asyncio, json
from appliance.sqlite_by_owner.connection import Connection, Helper
from scheduler.gpus import Card
from scheduler.store import Store
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from web.models import AllocationEvent, Container

receive, lose = Connection._receive, []
def cut_off(self, until):
    answer = receive(self, until)
    if lose and lose[-1](self):
        lose.pop()
        self.helper.kill()  # it has committed, and its answer does not arrive
        raise EOFError("killed")
    return answer
Connection._receive = cut_off

async def main():
    store = Store("here", "holder")
    await store.open({}, {})
    def at_a_commit(self):
        return asked[-1] == "commit"
    asked = []
    ask = Connection.ask
    Connection.ask = lambda self, word, *rest, **more: (asked.append(word), ask(self, word, *rest, **more))[1]
    for number in range(3):
        store.event("accepted", CONTAINER, pid=number, size=4096)
    lose.append(at_a_commit)
    try:
        await store.flush()
    except OperationalError as error:
        print(json.dumps(str(error)), flush=True)
    for number in range(3, 5):
        store.event("accepted", CONTAINER, pid=number, size=4096)
    await store.flush()
    await store.close()

owner = User.objects.create(username="ada")
CONTAINER = str(Container.objects.create(owner=owner, name="c", image="local").pk)
connection.close()
asyncio.run(main())
print(json.dumps(list(AllocationEvent.objects.order_by("pk").values_list("pid", flat=True))))
print(type(connection.connection).__name__)
asyncio.run(main())
print(json.dumps(list(AllocationEvent.objects.order_by("pk").values_list("pid", flat=True))))
"""


def test_events_whose_commit_had_no_answer_are_written_once(tmp_path):
    home, _ = web_users_database.home(tmp_path)
    done = web_users_database.root(home, STORE)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    lost, first, kind, lost_again, second = out.splitlines()
    assert "is lost" in lost
    assert json.loads(first) == [0, 1, 2, 3, 4]
    assert kind == "Connection"
    assert "is lost" in lost_again
    assert json.loads(second) == [0, 1, 2, 3, 4] * 2  # a new scheduler's numbers follow

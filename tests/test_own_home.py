"""Tests never touch the data of the person who runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection

from tests.support import own_home
from web.models import Node


def test_each_test_has_an_empty_home_below_that_of_its_process() -> None:
    assert Path(settings.GPUSHARE_HOME).parent == Path(os.environ["GPUSHARE_HOME"])
    assert list(Path(settings.GPUSHARE_HOME).iterdir()) == []


def test_nothing_in_the_settings_lies_in_the_checkouts_data() -> None:
    assert not [
        name for name in filter(str.isupper, dir(settings)) if str(own_home.CHECKOUT) in str(getattr(settings, name))
    ]


@pytest.mark.parametrize("name", ["GPUSHARE_HOME", "DATABASE_URL"])
def test_a_run_that_is_pointed_at_real_data_stops_with_a_sentence(tmp_path: Path, name: str) -> None:
    value = str(tmp_path) if name == "GPUSHARE_HOME" else f"sqlite:///{tmp_path / 'real.sqlite3'}"
    words = [sys.executable, "-m", "pytest", "tests/core/test_policies.py"]
    bare = {word: text for word, text in os.environ.items() if word != "GPUSHARE_HOME"}
    done = subprocess.run(words, cwd=own_home.ROOT, env={**bare, name: value}, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_other_settings_of_the_person_who_runs_them_are_dropped() -> None:
    theirs = {"GPUSHARE_GPUS": "auto", "REDIS_URL": "redis://lab", "GPUSHARE_STORM": "2x1"}
    script = f"import os; from tests.support import own_home; print(*sorted({set(theirs)} & os.environ.keys()))"
    done = subprocess.run([sys.executable, "-c", script], cwd=own_home.ROOT, env=own_home.clean_environ() | theirs,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "GPUSHARE_STORM\n"


FORKED = """
import atexit, gc, os
from pathlib import Path
from tests.support import own_home

child = os.fork()
if child == 0:
    atexit._clear()
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
print(Path(os.environ["GPUSHARE_HOME"], own_home.OWNED).exists())
"""


def test_a_forked_process_that_drops_what_was_registered_for_the_end_leaves_the_home() -> None:
    """As multiprocessing's do from Python 3.13 on; with the home went every later test of the run."""
    words = [sys.executable, "-c", FORKED]
    assert subprocess.run(words, cwd=own_home.ROOT, capture_output=True, text=True, check=True).stdout == "True\n"


def test_a_change_in_the_checkouts_data_is_found(tmp_path: Path) -> None:
    assert own_home.state(tmp_path / "missing") == {}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "one").write_text("1")
    before = own_home.state(tmp_path)
    (tmp_path / "run" / "one").write_text("22")
    (tmp_path / "two").touch()
    after = own_home.state(tmp_path)
    assert sorted(after) == ["run/one", "two"]
    assert before["run/one"] != after["run/one"]


@pytest.mark.django_db(transaction=True)
async def test_a_query_of_async_code_runs_in_a_thread_that_all_tests_share() -> None:
    await Node.objects.acount()


async def test_the_next_test_finds_no_connection_of_it_there() -> None:
    assert await sync_to_async(lambda: connection.connection)() is None

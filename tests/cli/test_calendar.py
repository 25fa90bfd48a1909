"""Notices and reservations from the command line, against a real appliance."""

from datetime import datetime, timedelta

import pytest

from tests.cli.support import gpushare


@pytest.fixture
def shell(appliance):
    """Runs one command line as the admin, where it is Berlin's time."""
    return lambda *words: gpushare(*words, environ=appliance.environ | {"TZ": "Europe/Berlin"})


def at(days: int) -> str:
    return f"{datetime.now() + timedelta(days=days):%Y-%m-%d}T08:00"


def test_a_notice_is_announced_listed_shown_at_a_launch_and_withdrawn(shell):
    assert shell("notice").stdout == "No notices.\n"
    made = shell("notice", "New driver", "--from", at(2), "--to", f"{at(2)[:10]} 12:00", "--then", "end")
    assert made.returncode == 0, made.stderr
    number = made.stdout.partition(":")[0]
    assert "Maintenance of all nodes" in made.stdout
    (row,) = [line for line in shell("notice").stdout.splitlines() if "New driver" in line]
    assert [word in row for word in ("08:00 CE", "12:00 CE", "all", "end")] == [True] * 4
    assert "Maintenance of all nodes" in shell("forecast", "--gpu-memory", "1GiB").stdout
    refused = shell("notice", "Late", "--from", "2020-01-01", "--to", "2020-01-02")
    assert (refused.returncode, "in the future" in refused.stderr) == (1, True)
    assert shell("notice", "x", "--from", "soon").stderr.startswith("gpushare: 'soon' is not a time")
    assert shell("notice", "--withdraw", number).stdout == f"{number}: withdrawn\n"
    assert shell("notice").stdout == "No notices.\n"


def test_memory_is_reserved_listed_refused_to_others_and_given_back(shell):
    made = shell("reserve", at(3), "--for", "4h", "--gpu-memory", "512MiB", "--weekly", "2", "--note", "class")
    assert made.returncode == 0, made.stderr
    (row,) = [line for line in shell("reservations").stdout.splitlines() if "class" in line]
    assert [word in row for word in ("admin", "512 MiB", "08:00 CE", "12:00 CE", "weekly, 2 times")] == [True] * 5
    over = shell("reserve", at(10), "--gpus", "device=0")
    assert (over.returncode, "is taken by admin" in over.stderr) == (1, True)
    assert "--for" in shell("reserve", at(3), "--for", "long").stderr
    number = row.split()[0]
    assert shell("reservations", "--cancel", number).stdout == f"{number}: ended\n"
    assert shell("reservations").stdout == "No reservations.\n"

"""examples/weekly-report, and the line by which cron starts it."""

import csv
import re
import subprocess
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES, Run
from tests.support.appliance import WORKLOAD, Appliance, until

LINE = re.compile(r"(\S+) (\S+) (\S+) (\S+) (\S+)\s+(\S+)\s+(.*)")
PACKAGED = "/usr/share/doc/gpushare/examples"


@pytest.fixture
def used(appliance: Appliance) -> None:
    """There was one container, so that there is something to report."""
    made = appliance.launch(WORKLOAD, "--bytes", "64MiB", gpu_memory="128MiB")
    until(lambda: appliance.api("GET", f"containers/{made['id']}/")["finished_at"])


@pytest.mark.usefixtures("used")
def test_it_prints_a_table_and_keeps_the_figures_as_csv(run: Run, tmp_path: Path) -> None:
    output = run("weekly-report", "reports")
    assert "GIB·HOURS" in output
    assert re.search(r"(?m)^admin +\d+ ", output)
    (kept,) = (tmp_path / "reports").iterdir()
    assert re.fullmatch(r"gpushare-\d{4}-W\d\d\.csv", kept.name)
    assert output.endswith(f"In full: reports/{kept.name}\n")
    rows = list(csv.DictReader(kept.read_text().splitlines()))
    (admin,) = [row for row in rows if row["user"] == "admin"]
    assert int(admin["containers"]) >= 1
    assert int(admin["peak"]) >= 64 << 20


def test_a_report_that_breaks_off_leaves_the_file_of_before(run: Run, tmp_path: Path) -> None:
    run("weekly-report", "reports")
    (kept,) = (tmp_path / "reports").iterdir()
    before = kept.read_text()
    program = tmp_path / "bin" / "gpushare"
    program.rename(program.with_name("whole"))
    program.write_text('#!/bin/sh\ncase $* in *--csv*) whole "$@" | head -c 9; exit 1 ;; esac\nexec whole "$@"\n')
    program.chmod(0o755)
    run("weekly-report", "reports", code=1)
    assert [(each, each.read_text()) for each in (tmp_path / "reports").iterdir()] == [(kept, before)]


def test_who_may_not_ask_sees_why(run: Run, environ: dict[str, str]) -> None:
    environ["GPUSHARE_TOKEN"] = "wrong"
    assert "gpushare: " in run("weekly-report", "reports", code=1)


def test_the_line_of_cron_runs_it(environ: dict[str, str], tmp_path: Path) -> None:
    """As cron does: with `sh`, its own few variables, and those that the file sets."""
    given, lines = {"HOME": "/root", "LOGNAME": "root"}, []
    for line in (EXAMPLES / "weekly-report.cron").read_text().splitlines():
        if setting := re.fullmatch(r"(\w+)=(.*)", line):
            given[setting[1]] = setting[2]
        elif line and not line.startswith("#"):
            lines.append(line)
    (line,) = lines
    minute, hour, *days, user, command = LINE.fullmatch(line).groups()
    assert ((minute, hour, days), user) == (("0", "7", ["*", "*", "1"]), "root")
    assert "%" not in command  # cron takes it for the end of the line
    script, folder = command.split()
    assert script == f"{PACKAGED}/weekly-report"
    assert "/usr/bin" in given["PATH"].split(":")  # where the package has gpushare
    given["PATH"] = f"{tmp_path}/bin:{given['PATH']}"  # where this test has it
    command = command.replace(PACKAGED, str(EXAMPLES)).replace(folder, str(tmp_path / "kept"))
    done = subprocess.run(
        ["sh", "-c", command], env=environ | given, cwd="/", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "kept").glob("*.csv"))) == 1

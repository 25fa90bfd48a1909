"""examples/batch: submits, waits for all, collects."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES, Run
from tests.support.appliance import WORKLOAD, Appliance, until


@pytest.fixture
def jobs(tmp_path: Path):
    def jobs(*lines: str) -> str:
        (tmp_path / "jobs").write_text("\n".join(lines))  # no line end at the end: the last job counts as well
        return "jobs"

    return jobs


def codes(folder: Path) -> list[list[str]]:
    head, *rows = (folder / "codes.tsv").read_text().splitlines()
    assert head == "JOB\tCODE\tCOMMAND"
    return [row.split("\t") for row in rows]


def test_every_job_runs_and_what_it_printed_and_its_exit_code_are_collected(run: Run, jobs, tmp_path: Path) -> None:
    output = run("batch", "-m", "64MiB", jobs("# first", "echo one $JOB", "", "echo two; exit 7", "kill -9 $$"), code=1)
    assert codes(tmp_path / "jobs.out") == [
        ["1", "0", "echo one $JOB"],
        ["2", "7", "echo two; exit 7"],
        ["3", "137", "kill -9 $$"],
    ]
    assert [(tmp_path / f"jobs.out/{n}.out").read_text() for n in (1, 2, 3)] == ["one 1\n", "two\n", ""]
    assert "3 jobs submitted" in output
    assert output.endswith("1 jobs did well, 2 failed: jobs.out/codes.tsv\n")


def test_more_jobs_than_the_card_holds_wait_for_each_other_and_all_do_well(run: Run, jobs, tmp_path: Path) -> None:
    wants = f"{WORKLOAD} --bytes 600MiB --hold 2"
    output = run("batch", "-m", "700MiB", "-o", "results", jobs(wants, wants, wants))
    assert [row[1] for row in codes(tmp_path / "results")] == ["0", "0", "0"]
    for n in (1, 2, 3):
        assert (tmp_path / f"results/{n}.out").read_text().rstrip().endswith("done")
    assert "3 jobs did well, 0 failed" in output


def test_a_batch_that_is_refused_says_why_and_has_125(run: Run, jobs, tmp_path: Path) -> None:
    output = run("batch", "-m", "64GiB", jobs("true"), code=1)
    assert "64 GiB is more than it can ever give" in output
    assert codes(tmp_path / "jobs.out") == [["1", "125", "true"]]


def test_without_a_file_of_jobs_it_tells_its_usage(run: Run) -> None:
    assert "usage: batch" in run("batch", "nowhere", code=2)


def test_ctrl_c_ends_the_jobs(appliance: Appliance, environ: dict[str, str], jobs, tmp_path: Path) -> None:
    words = [str(EXAMPLES / "batch"), "-m", "64MiB", jobs("sleep 600", "sleep 600")]
    batch = subprocess.Popen(words, env=environ, cwd=tmp_path, text=True, stdout=subprocess.PIPE)
    try:
        assert batch.stdout is not None
        assert batch.stdout.readline() == "2 jobs submitted. Those that wait for GPU memory now:\n"
        assert len(appliance.containers()) == 2
        batch.send_signal(signal.SIGTERM)  # Ctrl-C is ignored by who is started in the background
        assert batch.wait(60) == 130
        until(lambda: not appliance.containers())
    finally:
        batch.kill()
        batch.wait()
        if batch.stdout:
            batch.stdout.close()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing_in_the_examples() -> None:
    scripts = [
        path for path in EXAMPLES.rglob("*") if path.is_file() and b"sh\n" in path.read_bytes().split(b"\n")[0] + b"\n"
    ]
    assert {path.name for path in scripts} == {"batch", "role.sh", "weekly-report"}
    done = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout

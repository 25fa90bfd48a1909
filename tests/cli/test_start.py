"""It starts quickly, completes, and is what `pip install` installs."""

import os
import subprocess
import sys

from tests.cli.support import ENTRY, ROOT, environment, gpushare
from tests.support.eventually import PATIENCE

HEAVY = {"django", "rest_framework", "channels", "docker", "httpx", "rich", "asyncio"}


def loaded_by(statement):
    """The packages that are imported after this statement."""
    script = f"import sys; {statement}; print(*{{name.partition('.')[0] for name, it in sys.modules.items() if it}})"
    return set(subprocess.check_output([sys.executable, "-c", script], env=environment(), text=True).split())


def test_help_loads_nothing_that_it_does_not_need():
    """What `--help` and each key press of completion wait for. Counted: a clock would lie on a busy machine."""
    loaded = loaded_by("import appliance.cli")
    assert "typer" in loaded
    assert not HEAVY & loaded


def test_a_request_loads_neither_the_appliance_nor_the_http_librarys_own_command_line():
    loaded = loaded_by("from appliance.cli import client, login; client.Client(login.Login('http://x', ''))")
    assert "httpx" in loaded
    assert not {"django", "rich", "pygments"} & loaded


def test_help_lists_every_command():
    listed = gpushare("--help").stdout
    for command in ("login", "run", "ps", "logs", "pause", "resume", "kill", "rm", "set", "queue", "gpus", "top"):
        assert f"\n  {command} " in listed


def test_every_command_answers_programs_too():
    """Asked of the commands themselves, so that a new one cannot be forgotten."""
    script = (
        "import typer; from appliance.cli.main import app; commands = typer.main.get_command(app).commands;"
        "print(len(commands), *(name for name, made in commands.items()"
        " if not any('--json' in option.opts for option in made.params)))"
    )
    output = subprocess.check_output([sys.executable, "-c", script], env=environment(), text=True)
    count, *without = output.split()
    assert int(count) >= 15
    assert without == ["exec"]  # what it writes is the program's own


def test_shells_get_a_completion_script_and_the_commands():
    script = gpushare("--show-completion", "bash", environ={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert "_GPUSHARE_COMPLETE=complete_bash" in script.stdout
    asked = {"_GPUSHARE_COMPLETE": "complete_bash", "COMP_WORDS": "gpushare pa", "COMP_CWORD": "1"}
    assert gpushare(environ=asked).stdout.split() == ["pause"]


def test_completion_of_names_is_silent_where_nothing_can_be_known():
    asked = {"_GPUSHARE_COMPLETE": "complete_bash", "COMP_WORDS": "gpushare pause tr", "COMP_CWORD": "2"}
    done = gpushare(environ=asked)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_output_into_a_closed_pipe_ends_quietly():
    quiet = subprocess.run(
        ["sh", "-c", '"$@" --help | :', "sh", *ENTRY],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert quiet.stderr == ""


def test_make_puts_it_beside_the_other_programs_of_the_checkout(tmp_path):
    entry = tmp_path / "bin" / "gpushare"
    entry.parent.mkdir()
    (tmp_path / ".run").touch()  # the packages are there: they are those of this very run
    make = [
        "make",
        "-s",
        f"VENV={tmp_path}",
        f"PY={os.path.relpath(sys.executable, ROOT)}",
        "-o",
        tmp_path / ".run",
        entry,
    ]
    subprocess.run(make, cwd=ROOT, check=True, timeout=PATIENCE)
    done = subprocess.run([entry, "--help"], capture_output=True, text=True, cwd="/", timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: gpushare")
    alone = subprocess.run([entry], capture_output=True, text=True, cwd="/", timeout=PATIENCE)
    assert (alone.returncode, alone.stderr, alone.stdout) == (0, "", done.stdout)

"""docs/cli.md, run line by line: its transcript is true."""

import os
import subprocess
from contextlib import suppress

import pytest

from tests.cli.support import ENTRY, environment
from tests.support.appliance import ROOT, Appliance
from tests.support.documents import console, level
from tests.support.eventually import until

LOOKS = ("ps", "gpus", "queue", "peak", "report")  # repeated until they show it: it comes about by itself


@pytest.fixture
def reader(tmp_path):
    """A shell as the page supposes it: gpushare is a program, and the token is in a file."""
    programs = tmp_path / "bin"
    programs.mkdir()
    path = f"{programs}:{os.environ['PATH']}"
    running = Appliance(tmp_path / "var", gpus="sim:1x5GiB")
    (tmp_path / "token").write_text(running.token)
    launcher = programs / "gpushare"
    launcher.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in ENTRY) + ' "$@"\n')
    launcher.chmod(0o755)
    environ = environment({"HOME": str(tmp_path), "PATH": path})
    del environ["GPUSHARE_CONFIG"]

    def read(command, before):
        """What the command prints: stdout, stderr. `$?` is that of the command before."""
        command = command.replace("http://127.0.0.1:8000", running.url)
        done = subprocess.run(
            ["bash", "-c", f"(exit {before}); {command}"], env=environ, cwd=tmp_path, capture_output=True, text=True,
            timeout=100,
        )  # fmt: skip
        home_and_address = lambda text: text.replace(str(tmp_path), "~").replace(running.url, "http://127.0.0.1:8000")  # noqa: E731
        return home_and_address(done.stdout), home_and_address(done.stderr), done.returncode

    yield read
    running.close()


def page_after(reader, command, before):
    out, err, _ = reader(command, before)
    return streams(out + err)


def test_the_page_about_the_command_line_shows_what_happens(reader):
    code = 0
    for example in console(ROOT / "docs" / "cli.md"):
        before, shown = code, streams(example.shown)
        if example.command.split()[1] in LOOKS:
            with suppress(AssertionError):  # the line below says what it printed instead
                until(lambda typed=example.command, code=before, page=shown: page_after(reader, typed, code) == page)
        out, err, code = reader(example.command, before)
        assert streams(out + err) == shown, f"docs/cli.md:{example.line}: {example.command}"


def streams(text):
    """What goes to stdout and what to stderr: between the two there is no order to rely on."""
    lines = level(text)
    remarks = [line for line in lines if line.startswith("gpushare: ")]
    return [line for line in lines if line not in remarks], remarks

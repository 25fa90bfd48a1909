"""docs/rest.md, run line by line with curl and jq: what it shows is what happens."""

import re
import shutil
import subprocess

import pytest

from tests.support.appliance import ROOT, Appliance
from tests.support.documents import blocks, console, level

PAGE = ROOT / "docs" / "rest.md"


@pytest.fixture
def reader(tmp_path):
    """A shell that has read the page's set-up, and keeps the variables that its examples set."""
    if missing := [program for program in ("curl", "jq") if shutil.which(program) is None]:
        pytest.skip(f"needs {' and '.join(missing)}")
    running = Appliance(tmp_path / "var", gpus="sim:1x5GiB", GPUSHARE_POLICY="")
    ((_, setup),) = blocks(PAGE, "sh")
    known = [setup.replace("http://127.0.0.1:8000", running.url)]

    def read(command):
        variable = re.match(r"([A-Z]+)=", command)
        show = f'\nprintf %s "${variable[1]}"' if variable else ""
        done = subprocess.run(
            ["bash", "-c", "\n".join([*known, command + show])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if variable:
            known.append(f"{variable[1]}='{done.stdout}'")
            return "", done.stderr
        return done.stdout, done.stderr

    yield read
    running.close()


def test_the_page_about_rest_shows_what_happens(reader):
    for example in console(PAGE):
        out, err = reader(example.command)
        assert (level(out), err) == (level(example.shown), ""), f"docs/rest.md:{example.line}: {example.command}"

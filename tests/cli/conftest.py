import contextlib
import subprocess

import pytest

from tests.cli.support import ENTRY, environment
from tests.support.appliance import Appliance


@pytest.fixture(scope="session")
def shared_appliance(tmp_path_factory):
    running = Appliance(tmp_path_factory.mktemp("appliance") / "var")
    yield running
    running.close()


@pytest.fixture
def appliance(shared_appliance):
    """One appliance serves all tests; each leaves it without living containers."""
    yield shared_appliance
    shared_appliance.end_all()


@pytest.fixture
def start():
    """Starts a command line that lasts. What still runs when the test ends is ended."""
    with contextlib.ExitStack() as running:

        def start(*words, environ=None, **options):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
            given = {"env": environment(environ), "cwd": "/", "text": True, **pipes, **options}
            process = running.enter_context(subprocess.Popen([*ENTRY, *words], **given))
            running.callback(process.kill)
            return process

        yield start

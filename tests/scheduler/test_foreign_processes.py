"""What everybody sees of a program that holds a card's memory and is no container's."""

import subprocess
from pathlib import Path

import pytest

from scheduler.monitors.foreign_processes import ForeignProcesses
from tests.support.eventually import until


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["sleep", "600"], "sleep 600"),
        (["serve --password=hunter2", "60"], "serve …"),  # a title that the program has written itself
        (["serve model hunter2=1 more", "60"], "serve model …"),
        (["python serve.py redis://:hunter2@host/0", "60"], "python serve.py …"),
    ],
)
def test_no_option_and_no_address_of_it_is_shown(words: list[str], shown: str) -> None:
    process = subprocess.Popen(words, executable="/bin/sleep")
    try:
        until(Path(f"/proc/{process.pid}/cmdline").read_bytes)  # the kernel lets the parent go on before it has them
        (found,) = ForeignProcesses().described({process.pid: 1 << 30})
    finally:
        process.kill()
        process.wait()
    assert found["command"] == shown

"""Launches that begin later, from the command line, against a real appliance."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.support import gpushare
from tests.support.appliance import until

TABLE = ["#", "NAME", "OWNER", "NEEDS", "RUNS", "STATE", "WAITS", "FOR"]


@pytest.fixture
def shell(appliance: Any) -> Callable[..., Any]:
    """Runs one command line, logged in."""
    return lambda *words, **more: gpushare(*words, environ=appliance.environ, **more)


def test_sweep_and_what_comes_after_it_begin_by_themselves(shell):
    said = shell("run", "--hold", "--name", "train", "--sweep", "lr=0.1,0.01", "--at-once", "1", "--retries", "1",
                 "--gpu-memory", "64MiB", "local", "sh", "-c", "echo {lr} {i}")  # fmt: skip
    assert said.stdout == "train: planned. 2 runs, 1 at once. Held until it is released.\n", said.stderr
    said = shell("run", "--after", "train", "--name", "report", "--gpu-memory", "64MiB", "local", "true")
    assert said.stdout == "report: planned. Begins after train.\n", said.stderr
    head, *lines = shell("queue", "--planned").stdout.splitlines()
    assert head.split() == TABLE
    assert [line.split()[1] for line in lines] == ["report", "train"]
    assert shell("edit", "train", "--at-once", "2").returncode == 0
    assert shell("release", "train", "--note", "now").stdout.startswith("train: waiting.")
    until(lambda: shell("queue", "--planned").stdout == "No launch is planned.\n")
    assert shell("logs", "train-0002").stdout == "0.01 2\n"
    assert json.loads(shell("ps", "-a", "--json").stdout)[0]["name"] == "report"


def test_cancelled_chain_is_planned_again(shell):
    shell("run", "--hold", "--name", "first", "local", "true")
    shell("run", "--after", "first", "--name", "second", "local", "true")
    assert shell("cancel", "first").returncode == 0
    until(lambda: shell("queue", "--planned").stdout == "No launch is planned.\n")
    made = shell("again", "first").stdout.splitlines()
    assert [line.split(":")[0] for line in made] == ["first", "second"]
    until(lambda: shell("queue", "--planned").stdout == "No launch is planned.\n")
    assert [each["name"] for each in json.loads(shell("ps", "-a", "--json").stdout)][:2] == ["second", "first"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hold", "nobody"), "no planned launch 'nobody'"),
        (("edit", "nobody"), "nothing to change"),
        (("run", "--retries", "2", "local", "true"), "--retries: This is for planned launches: give queue, too"),
        (("run", "--sweep", "200000", "local", "true"), "--sweep: A sweep has 1 to 10,000 runs"),
    ],
)
def test_bad_input_is_one_line_with_what_to_do(shell, words, said):
    done = shell(*words)
    assert done.returncode
    assert said in done.stderr
    assert done.stderr.count("\n") == 1

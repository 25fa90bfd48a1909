"""examples/follow.py: a container over REST alone."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.examples.conftest import Run
from tests.support.appliance import WORKLOAD, Appliance, until

WHY = re.compile(r" is suspended, number 1 in the queue: Needs .*first ends")


def test_it_launches_follows_and_ends_with_the_programs_code(run: Run, tmp_path: Path) -> None:
    go = tmp_path / "go"
    words = ("sh", "-c", f"echo hello; while [ ! -e {go} ]; do sleep 0.05; done; exit 7")

    def until_it_was_seen(said: Callable[[], str]) -> None:
        until(lambda: " is running\n" in said())
        go.touch()

    output = run("follow.py", "--gpu-memory", "64MiB", "local", *words, code=7, meanwhile=until_it_was_seen)
    assert re.search(r" is running\n", output)
    assert re.search(r" is failed\n", output)
    assert output.endswith("hello\n")


def test_it_says_why_it_waits_and_goes_on(run: Run, appliance: Appliance, tmp_path: Path) -> None:
    go = tmp_path / "go"
    appliance.launch(WORKLOAD, "--bytes", "700MiB", "--until", str(go), name="first", gpu_memory="800MiB")
    until(lambda: appliance.named("first")["gpus"][0]["used"] >= 700 << 20)

    def until_it_said_why(said: Callable[[], str]) -> None:
        until(lambda: WHY.search(said()))
        go.touch()

    words = ("--gpu-memory", "600MiB", "local", WORKLOAD, "--bytes", "500MiB")
    output = run("follow.py", *words, meanwhile=until_it_said_why)
    assert WHY.search(output), output
    assert re.search(r" is exited\n", output)


def test_it_ends_one_whose_time_is_over(run: Run) -> None:
    output = run("follow.py", "--gpu-memory", "64MiB", "--seconds", "1", "local", "sleep", "600", code=143)
    assert re.search(r" is running\n.* is killed\n", output)


def test_what_is_refused_is_reported_in_a_sentence(run: Run) -> None:
    output = run("follow.py", "--gpu-memory", "64GiB", "local", "true", code=125)
    assert output == "not launched: 64 GiB is more than it can ever give: the most is 1 GiB.\n"

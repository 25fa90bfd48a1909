"""Runs of containers that mount a volume of ours: known while they may be a container's, and to several threads."""

from pathlib import Path

import pytest

from scheduler.engines.base import Run
from scheduler.engines.docker.mounting.runs import Mounted


class Meanwhile(str):
    """A container's ID. While it is looked at by one thread, another one notes that a volume was mounted."""

    mounted: Mounted

    def __eq__(self, other: object) -> bool:
        self.mounted.expect(Run(f"another than {len(self.mounted._runs)}", "v", 2.0, Path("log")))
        return super().__eq__(other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("change", ["start", "die"])
def test_what_is_mounted_while_an_event_is_looked_at_does_not_end_the_thread_that_does(change: str) -> None:
    """It would hear of no end any more: `docker run --rm` would be reported without its exit code."""
    mounted = Mounted()
    mine = Meanwhile("mine")
    mine.mounted = mounted
    mounted.expect(Run("1", "v", 1.0, Path("log"), mine))
    assert mounted.happened("mine", change, {"exitCode": "3"}, 3.0)

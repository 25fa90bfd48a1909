"""A local process that the kernel ended for lack of memory says so: its control group's limit is its host's."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.engines import kernel_log
from scheduler.engines.base import Condition
from scheduler.engines.process.engine import ProcessEngine
from tests.engines.conftest import next_change
from tests.engines.processes import a_launch, engine, runtime_environment
from tests.support.eventually import eventually

__all__ = ["engine", "runtime_environment"]

LIMIT = 16 << 20  # bytes
GROUPS = {  # where control groups for memory are, and the file with the limit: version 1, version 2
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of a test's own, with LIMIT."""
    if not kernel_log.can_be_read():
        pytest.skip("nobody may read the kernel's log here")
    for root, limit in GROUPS.items():
        with contextlib.suppress(OSError):
            path = root / f"gpushare-test-{os.getpid()}"
            path.mkdir()
            try:
                if (path / limit).exists():
                    (path / limit).write_text(str(LIMIT))
                    yield path
                    return
            finally:
                path.rmdir()
    pytest.skip("no control group with a limit of memory can be made here")


async def test_process_that_the_kernel_ended_for_lack_of_memory_says_whose(
    engine: ProcessEngine, tmp_path: Path, group: Path
) -> None:
    script = f"echo $$ > {group}/cgroup.procs; exec dd if=/dev/zero of=/dev/null bs=100M count=1"
    await engine.launch(a_launch(tmp_path, "sh", "-c", script))
    ended = await next_change(engine, Condition.ENDED)
    assert ended.exit_code == 137
    assert ended.reason == f"Out of host memory: the processes in the control group /{group.name} passed its limit."
    await eventually(lambda: not (group / "cgroup.procs").read_text())

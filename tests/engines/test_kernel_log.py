"""The kernel's log says whom it has ended for lack of memory, and whose limit was passed."""

import pytest

from scheduler.engines import kernel_log
from scheduler.engines.kernel_log import OomKill

ID = "319ff664086a46fb5dd26f687fec39d68a59b3cc34e3fc1ac121e7eac9be417b"
SLICE = f"/system.slice/docker-{ID}.scope"


def line(whose: str, group: str, *, task: str = "dd", prefix: str = "<6>[12118.319675] ", pid: int = 11355) -> str:
    constraint = "CONSTRAINT_NONE" if whose == "global_oom" else "CONSTRAINT_MEMCG"
    return (
        f"{prefix}oom-kill:constraint={constraint},nodemask=(null),cpuset={ID},mems_allowed=0,{whose},"
        f"task_memcg={group},task={task},pid={pid},uid=0\n"
    )


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (line(f"oom_memcg=/docker/{ID}", f"/docker/{ID}"), OomKill(11355, f"/docker/{ID}", f"/docker/{ID}")),
        (line(f"oom_memcg={SLICE}", f"{SLICE}/init"), OomKill(11355, f"{SLICE}/init", SLICE)),
        (line("oom_memcg=/docker", f"/docker/{ID}"), OomKill(11355, f"/docker/{ID}", "/docker")),
        (line("global_oom", f"/docker/{ID}"), OomKill(11355, f"/docker/{ID}", "")),
        (line("global_oom", "/", prefix="<6>"), OomKill(11355, "/", "")),
        (line("global_oom", "/", prefix="<6>[  118.319675][ T1135] "), OomKill(11355, "/", "")),
        (line("global_oom", "/", task="x,pid=1,uid=0"), OomKill(11355, "/", "")),
    ],
)
def test_line_says_whom_and_whose_limit(monkeypatch: pytest.MonkeyPatch, said: str, means: OomKill) -> None:
    before, after = "<4>[1.0] dd invoked oom-killer: order=0\n", "<3>[1.0] Out of memory: Killed process 11355 (dd)\n"
    monkeypatch.setattr(kernel_log, "_read", lambda: before + said + after)
    assert kernel_log.oom_kills() == [means]


def test_name_of_a_program_is_no_line_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = line("global_oom", "/", prefix="<6>[1.0] x oom-kill: ").replace("oom-kill: ", "", 1)
    monkeypatch.setattr(kernel_log, "_read", lambda: forged + "<6>[1.0] oom-kill:con[7]: segfault at 0\n")
    assert kernel_log.oom_kills() == []


def test_of_two_processes_with_one_number_the_last_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_read", lambda: line("oom_memcg=/a", "/a") + line("global_oom", "/"))
    assert kernel_log.of_process(11355) == kernel_log.HOST
    assert kernel_log.of_process(11356) == ""


def test_log_that_nobody_may_read_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_syslog", lambda *_: -1)
    assert kernel_log.oom_kills() is None
    assert not kernel_log.can_be_read()
    assert kernel_log.of_process(1) == ""

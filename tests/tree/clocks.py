"""No test sleeps, compares with a clock or asks with httpx's own time limit: it would know how fast the machine is.

A test waits for the event itself (tests/support/eventually.py) or runs on virtual time. `EXCEPTIONS` lists what cannot,
by reason. `sleep(0)`, which lets others run, is no wait; a program in a string is not the test itself; and a lower
bound (`assert took > 1.5`) holds on a slow machine all the more.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ASKS = {"get", "post", "put", "patch", "delete", "request", "stream", "Client", "AsyncClient"}
CLOCKS = {"time.monotonic", "time.perf_counter", "time.time", "loop.time", "asyncio.get_running_loop().time"}
# What waits for tests, and what measures: the harnesses of kills, of real GPUs and of packages.
LEFT_OUT = ("tests/support/", "tests/faults/", "tests/gpu/", "tests/installed/", "tests/often.py")

# A file, or a function of a file, by the reason why it may.
EXCEPTIONS = {
    "it acts, or is slow, at random moments": (
        "tests/card/kills.py",
        "tests/engines/test_hundred_launches.py",
        "tests/scheduler/test_ranks.py",
        "tests/shim/test_processes.py::test_processes_killed_at_random_leave_nothing",
        "tests/sim/test_computing.py::test_whoever_is_killed_or_frozen_at_any_moment_holds_up_nobody",
    ),
    "its time is virtual": ("tests/card/test_gates.py",),
    "it stands for something slow": (
        "tests/card/test_gates.py::_run",
        "tests/engines/test_docker_logs.py::slowly",
        "tests/kubernetes/cluster/pods.py::_tell",
        "tests/web/test_many_nodes.py::read",
    ),
    "something must not happen: a machine that is slower finds less, and fails nothing": (
        "tests/browser/test_console.py::_stands",
        "tests/card/test_guardian.py::test_the_next_scheduler_locks_nobody_whom_the_last_one_may_still_let_go",
        "tests/card/test_helper.py::test_calls_of_a_locked_process_wait",
        "tests/demo/test_link.py::test_the_demo_begins_when_somebody_has_opened_its_link_and_again_on_enter",
        "tests/kubernetes/test_claims.py::test_what_the_kubelet_gives_back_while_it_is_prepared_is_not_held",
        "tests/kubernetes/test_slices.py::"
        "test_memory_that_is_counted_is_not_offered_to_claims_as_well_when_the_gate_is_turned_on",
        "tests/plugin/test_calls.py::test_a_copy_out_of_a_container_that_runs_ends_nothing",
        "tests/shim/test_processes.py::test_a_signal_does_not_disturb_a_waiting_call",
        "tests/shim/test_session.py::test_a_first_connection_that_is_refused_waits_for_a_while",
        "tests/shim/test_session.py::test_beyond_it_they_wait_until_it_is_back",
        "tests/web/test_sockets.py::test_everything_is_sent_again_once_a_second_at_most",
    ),
    "a container's own second goes by, and both outcomes are right": (
        "tests/engines/test_conformance.py::test_restarted_scheduler_finds_the_living_the_paused_and_the_ended",
    ),
    "a recorded time lies between two looks at the clock, however far apart": (
        "tests/engines/test_conformance.py::test_what_was_launched_runs_and_is_seen",
        "tests/kubernetes/test_bad_input.py::test_a_node_whose_clock_is_wrong_is_warned_and_works",
    ),
    "a fake looks again and again, as what it stands for does": (
        "tests/kubernetes/cluster/kubelet.py::_watch",
        "tests/kubernetes/cluster/pods.py::_watch",
    ),
    "the promise is a time, and what breaks it takes many times as long": (
        "tests/card/test_guardian.py::test_the_next_one_knows_who_was_locked_before_it_began",
        "tests/scheduler/test_turns_processes.py",
        "tests/sim/test_card.py::test_a_frozen_process_holds_up_nobody",
    ),
}
# Files of tests/scheduler that still sleep or look at a clock. One that is mended may go from here; none may be added.
_NAMES = """
    answered_too_late bad_connections console_attaching console_viewers
    handed_over kept_here processes programs sockets storm
    turns_at_random turns_from_samples turns_processes
    verifying
"""
STILL = frozenset(f"tests/scheduler/test_{name}.py" for name in _NAMES.split())


def faults(root: Path) -> Iterator[str]:
    allowed, needed = {place for places in EXCEPTIONS.values() for place in places}, set()
    for place, line, what in places(root):
        file = place.partition("::")[0]
        needed |= {place, file}
        if not {place, file} & (allowed | STILL):
            yield f"{file}:{line} {what}: wait for the event by tests/support/eventually.py (tests/tree/clocks.py)"
    yield from (
        f"{place} needs no exception in tests/tree/clocks.py any more" for place in sorted((allowed | STILL) - needed)
    )


def places(root: Path) -> Iterator[tuple[str, int, str]]:
    """`file::function`, line, and what it does there."""
    for path in sorted((root / "tests").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(LEFT_OUT):
            reader = _Reader(name, is_virtual=_is_virtual(name, text := path.read_text()))
            reader.visit(ast.parse(text))
            yield from reader.found


def _is_virtual(file: str, text: str) -> bool:
    """All of its hosts are in the test's process, where asyncio's sleep is virtual and takes no time; those of
    tests/scheduler are, unless its file imports a real one."""
    asks = file.startswith("tests/scheduler/") and re.search(r"def test_\w+\([^)]*\b(host|inprocess)\b", text)
    is_real = re.search(r'\b(real_host|Host)\b|__all__ = .*"host"', text)
    return bool(asks or "from tests.support.inprocess" in text) and not is_real


class _Reader(ast.NodeVisitor):
    def __init__(self, file: str, *, is_virtual: bool = False) -> None:
        self.found: list[tuple[str, int, str]] = []
        self._file, self._is_virtual, self._functions = file, is_virtual, [""]
        self._imported: dict[str, str] = {}  # a name in this file → whose it is: "nap" → "time.sleep"
        self._lower: list[ast.Compare] = []  # what is asserted
        self._timed: dict[str, set[str]] = defaultdict(set)  # by function: its names for what a clock said

    def _in_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _in_function

    def visit_Import(self, node: ast.Import) -> None:
        self._imported |= {each.asname: each.name for each in node.names if each.asname}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._imported |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}

    def _named(self, node: ast.expr) -> str:
        first, dot, rest = ast.unparse(node).partition(".")
        return self._imported.get(first, first) + dot + rest

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._is_timed(node.value):
            self._timed[self._functions[-1]] |= {
                each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)
            }
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        if isinstance(node.test, ast.Compare):
            self._lower.append(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [self._is_timed(side) for side in (node.left, *node.comparators)]
        rises = isinstance(node.ops[0], ast.Gt | ast.GtE)
        lower = node in self._lower and sides == ([True, False] if rises else [*[False] * len(node.ops), True])
        if any(sides) and not self._is_virtual and not (lower and not isinstance(node.ops[0], ast.Eq | ast.NotEq)):
            self._note(node, "compares with a clock")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        nothing = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        module, _, name = self._named(node.func).rpartition(".")
        if name == "sleep" and not nothing and (module == "time" or not self._is_virtual):
            self._note(node, "sleeps")
        elif module == "httpx" and name in ASKS and not {each.arg for each in node.keywords} & {"timeout", "transport"}:
            self._note(node, "waits five seconds for an answer, as httpx does by itself")
        self.generic_visit(node)

    def _is_timed(self, node: ast.expr) -> bool:
        return any(
            (isinstance(each, ast.Call) and self._named(each.func) in CLOCKS)
            or (isinstance(each, ast.Name) and each.id in self._timed[self._functions[-1]])
            for each in ast.walk(node)
        )

    def _note(self, node: ast.expr, what: str) -> None:
        self.found.append((f"{self._file}::{self._functions[-1]}", node.lineno, what))

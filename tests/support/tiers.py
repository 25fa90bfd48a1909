"""Which tests wait for `make test-all`.

`make test` is for every change, and takes eight minutes on two cores: one test at least of each promise, and all that
are quick. What waits, and runs with `--all`: tests with the marker `long`, the files below, and the tests of
tests/slow.txt, which `python -m tests.slow` writes by their durations. A file that the command line names runs whole.
"""

from pathlib import Path

import pytest

# Files by the reason why they wait.
WAITING: dict[str, tuple[str, ...]] = {
    "every role on every page, every page at every width, ten tasks; tests/browser/test_in_short.py, "
    "test_whole_path.py and each page's own file stay": (
        "tests/browser/test_every_page.py",
        "tests/browser/test_first_moment.py",
        "tests/browser/test_full_pages.py",
        "tests/browser/test_pages.py",
        "tests/browser/test_stumbles.py",
        "tests/browser/test_any_day.py",
        "tests/browser/test_no_netlink.py",
        "tests/browser/test_by_keyboard.py",
        "tests/browser/test_namespaces.py",
        "tests/browser/test_short_queue.py",
        "tests/browser/test_sums.py",
        "tests/browser/test_swapped.py",
        "tests/browser/test_ten_tasks.py",
    ),
    "a Swarm of several engines; tests/engines/test_swarm_service.py and tests/web/test_given_to_a_swarm.py stay": (
        "tests/swarm/test_constraints.py",
        "tests/swarm/test_doctor.py",
        "tests/swarm/test_launches.py",
        "tests/swarm/test_restarts.py",
        "tests/swarm/test_what_is_reserved.py",
    ),
    "Kubernetes, by a fake of its API server; claims, contracts, counting, manifests and bad input stay": (
        "tests/kubernetes/test_after_a_boot.py",
        "tests/kubernetes/test_alone.py",
        "tests/kubernetes/test_at_random.py",
        "tests/kubernetes/test_check_script.py",
        "tests/kubernetes/test_containers.py",
        "tests/kubernetes/test_cut_off.py",
        "tests/kubernetes/test_freezer.py",
        "tests/kubernetes/test_policies.py",
        "tests/kubernetes/test_tls.py",
        "tests/kubernetes/test_two_at_once.py",
        "tests/kubernetes/test_two_drivers.py",
    ),
    "several hosts; launches, the relay and silence stay": (
        "tests/nodes/test_connections.py",
        "tests/nodes/test_stopped_within_a_transaction.py",
        "tests/nodes/test_two_hosts_by_the_docs.py",
    ),
    "the scheduler is killed at one more step; test_restart_processes.py and test_swapping_processes.py have one": (
        "tests/scheduler/test_storm.py",
        "tests/cli/test_outage.py",
    ),
    "turns in real time; test_turns.py and test_gates.py have them on virtual time, test_turns_processes.py the kill": (
        "tests/scheduler/test_turns_at_random.py",
    ),
    "backups: of each kind of failure one more; that a wiped host comes back stays": (
        "tests/appliance/test_log_of_a_run.py",
    ),
    "the database is away for long; tests/scheduler/test_without_the_database.py and test_kept_here.py stay": (
        "tests/scheduler/test_without_the_database_processes.py",
    ),
    "what documents show is played in full": (
        "tests/cli/test_document.py",
        "tests/examples/test_compose_volumes.py",
        "tests/web/test_document.py",
    ),
}  # fmt: skip


FILES = {file for files in WAITING.values() for file in files}
SLOW = set((Path(__file__).parents[1] / "slow.txt").read_text().split())


def waits(node: str) -> bool:
    """Whether a file, or a test by pytest's name of it, is in a list above."""
    return node.partition("::")[0] in FILES or node.partition("[")[0] in SLOW


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also the tests that wait for `make test-all`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    files = {Path(word.partition("::")[0]).resolve() for word in config.args if ".py" in word}
    left = [
        item
        for item in items
        if item.path not in files and (item.get_closest_marker("long") is not None or waits(item.nodeid))
    ]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]

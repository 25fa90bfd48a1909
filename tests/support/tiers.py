"""Which tests wait for `make test-all`.

`make test` is for every change: one test at least of each promise. What takes long and is one more of a kind waits, by
the marker `long` or in the lists below, and runs with `--all`. A file that the command line names runs whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

# Files, and tests of a file, by the reason why they wait.
WAITING: dict[str, tuple[str, ...]] = {
    "every role on every page, every page at every width; test_whole_path.py and each page's own file stay": (
        "tests/browser/test_every_page.py",
        "tests/browser/test_first_moment.py",
        "tests/browser/test_full_pages.py",
        "tests/browser/test_pages.py",
        "tests/browser/test_stumbles.py",
        "tests/browser/test_any_day.py",
        "tests/browser/test_three_people.py",
        "tests/browser/test_no_netlink.py",
    ),
    "a Swarm of several engines; tests/engines/test_swarm_service.py and tests/web/test_given_to_a_swarm.py stay": (
        "tests/swarm/test_constraints.py",
        "tests/swarm/test_doctor.py",
        "tests/swarm/test_launches.py",
        "tests/swarm/test_restarts.py",
        "tests/swarm/test_what_is_reserved.py",
    ),
    "Kubernetes, by a fake of its API server; claims, contracts, counting, manifests and bad input stay": (
        "tests/kubernetes/test_after_another_release.py",
        "tests/kubernetes/test_alone.py",
        "tests/kubernetes/test_at_random.py",
        "tests/kubernetes/test_check_script.py",
        "tests/kubernetes/test_containers.py",
        "tests/kubernetes/test_cut_off.py",
        "tests/kubernetes/test_freezer.py",
        "tests/kubernetes/test_in_the_browser.py",
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
    "the scheduler is killed at one more step; test_restart.py and test_swapping_processes.py have one": (
        "tests/scheduler/test_found_late.py",
        "tests/scheduler/test_preemption_processes.py::test_a_scheduler_killed_while_it_gives_way_leaves_nothing_half",
        "tests/scheduler/test_preemption_two_at_once.py",
        "tests/scheduler/test_restart.py::test_launches_under_a_scheduler_that_is_killed_run_once_each",
        "tests/scheduler/test_restart.py::test_memory_that_came_back_meanwhile_is_told",
        "tests/scheduler/test_restart.py::test_wait_that_goes_on_under_another_scheduler_is_one_wait_in_a_report",
        "tests/scheduler/test_storm.py",
        "tests/appliance/test_processes.py::test_both_may_be_killed_ten_times_in_a_row_as_soon_as_they_are_there",
        "tests/appliance/test_processes.py::test_it_can_be_stopped_while_it_waits_for_the_engine",
        "tests/cli/test_outage.py",
        "tests/cli/test_top.py::test_while_the_server_is_killed_it_says_so_keys_work_and_it_comes_back",
    ),
    "turns in real time; test_turns.py has them on virtual time, and test_turns_processes.py the kill": (
        "tests/scheduler/test_shares.py::test_it_is_written_down_and_taken_over",
        "tests/scheduler/test_shares.py::test_who_computes_a_little_of_each_second_had_that_little",
        "tests/scheduler/test_turns_at_random.py",
    ),
    "backups: of each kind of failure one more; that a wiped host comes back stays": (
        "tests/appliance/test_backup.py::test_a_log_that_was_tampered_with_is_told_when_it_is_restored",
        "tests/appliance/test_backup.py::test_only_the_newest_are_kept",
        "tests/appliance/test_backup.py::test_what_a_killed_backup_left_goes_with_the_next_and_nothing_of_one_that_is_made",
        "tests/appliance/test_backup.py::test_what_a_killed_restore_left_goes_with_the_next",
        "tests/appliance/test_backup.py::test_what_cannot_be_restored_is_told_and_nothing_is_changed",
        "tests/appliance/test_log_of_a_run.py",
        "tests/appliance/test_web_user.py::test_the_port_may_be_one_that_only_root_can_have",
        "tests/appliance/test_web_user.py::"
        "test_what_a_web_process_with_rights_left_is_there_for_one_without_and_the_other_way_round",
    ),
    "the database is away for long; tests/scheduler/test_kept_here.py stays": (
        "tests/scheduler/test_without_the_database.py",
    ),
    "what documents show is played in full": (
        "tests/cli/test_document.py",
        "tests/examples/test_compose_volumes.py",
        "tests/web/test_document.py",
        "tests/web/test_schema.py::test_every_operation_does_what_the_document_says",
    ),
    "each REST operation through a real nginx; its bodies with a length and in chunks stay": (
        "tests/web/test_chunked.py::test_so_has_one_through_nginx",
    ),
}  # fmt: skip


def waits(node: str) -> bool:
    """Whether a test, by pytest's name of it, is in a list above."""
    return any(
        node.startswith(prefix) and node[len(prefix) : len(prefix) + 1] in ("", "/", ":", "[")
        for prefixes in WAITING.values()
        for prefix in prefixes
    )


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

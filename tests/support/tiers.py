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
    "details of a page; what each page is for is played by the rest of its file, and who may what is in tests/web": (
        "tests/browser/test_actions.py::test_enter_does_what_the_dialog_for_several_asks",
        "tests/browser/test_actions.py::test_enter_in_the_reason_does_what_the_dialog_asks",
        "tests/browser/test_actions.py::test_no_form_made_by_hand_does_what_its_role_may_not",
        "tests/browser/test_actions.py::test_what_a_role_may_not_do_is_not_shown",
        "tests/browser/test_attention_acts.py::test_one_alone_has_no_line_for_all",
        "tests/browser/test_attention_acts.py::test_the_buttons_follow_what_can_be_done_now",
        "tests/browser/test_attention_acts.py::"
        "test_what_fails_again_and_again_is_launched_again_from_a_form_that_can_mend_it",
        "tests/browser/test_attention_acts.py::test_what_is_offered_for_all_is_what_each_of_them_can_take",
        "tests/browser/test_attention_acts.py::test_without_a_clipboard_the_command_is_shown_to_be_copied_by_hand",
        "tests/browser/test_bad_input.py::test_a_days_history_of_200_containers_is_drawn_and_walked_through",
        "tests/browser/test_bad_input.py::test_a_log_of_100_megabytes_opens_at_its_end_and_stays_small",
        "tests/browser/test_bad_input.py::test_a_second_tab_shows_the_same_and_follows_the_theme",
        "tests/browser/test_bad_input.py::test_an_idle_holder_is_listed_and_its_owner_warned",
        "tests/browser/test_bad_input.py::test_copying_a_launch_as_a_command",
        "tests/browser/test_bad_input.py::test_the_first_load_is_small",
        "tests/browser/test_by_keyboard.py",
        "tests/browser/test_computing.py::test_a_containers_page_says_what_it_had_and_takes_another_weight",
        "tests/browser/test_computing.py::test_the_history_shows_who_computed_then",
        "tests/browser/test_computing.py::test_where_nobody_can_tell_there_is_no_band",
        "tests/browser/test_console.py::test_no_other_page_loads_the_terminal",
        "tests/browser/test_console.py::test_the_keyboard_can_leave_the_terminal",
        "tests/browser/test_console.py::test_what_is_typed_while_it_connects_arrives",
        "tests/browser/test_container_page.py::test_a_container_of_two_gpus_shows_both",
        "tests/browser/test_container_page.py::test_all_of_the_output_can_be_downloaded",
        "tests/browser/test_container_page.py::test_its_first_memory_and_its_last_renew_what_the_server_tells",
        "tests/browser/test_container_page.py::test_its_settings_start_the_next_launch",
        "tests/browser/test_container_page.py::test_very_long_lines_of_output_and_environment_stay_inside_the_page",
        "tests/browser/test_dashboard.py::test_a_container_has_the_same_colour_everywhere",
        "tests/browser/test_dashboard.py::test_free_is_one_number_on_the_overview_and_beside_a_launch",
        "tests/browser/test_dashboard.py::test_on_a_capped_card_foreign_memory_takes_what_does_not_fit_beside_the_cap",
        "tests/browser/test_launch_form.py::test_a_scheduler_that_takes_its_time_is_asked_again",
        "tests/browser/test_launch_form.py::test_a_viewer_is_told_instead_of_shown_a_form",
        "tests/browser/test_launch_form.py::test_the_schedulers_own_forecast_is_told",
        "tests/browser/test_live.py::test_a_page_that_hears_that_its_session_is_over_breaks_off_nothing_that_was_sent",
        "tests/browser/test_live.py::test_a_server_that_is_slow_to_say_its_first_word_is_given_longer_each_time",
        "tests/browser/test_manage_nodes.py::test_they_are_readable_at_both_widths_and_in_both_themes",
        "tests/browser/test_me.py::test_on_a_phone_the_name_leads_here",
        "tests/browser/test_me.py::test_the_colours_are_chosen_and_the_button_in_the_frame_agrees",
        "tests/browser/test_me.py::test_who_has_no_container_is_led_to_the_form_and_not_to_a_filter",
        "tests/browser/test_namespaces.py",
        "tests/browser/test_notifications.py::test_the_desktop_tells_it_only_after_a_click_and_each_once",
        "tests/browser/test_past.py::test_a_report_is_of_everybody_as_over_rest_or_of_ones_own",
        "tests/browser/test_past.py::test_an_idle_holder_is_paused_from_the_list_by_who_may",
        "tests/browser/test_people.py::test_each_page_holds_long_names_and_axe_finds_nothing",
        "tests/browser/test_people.py::test_others_neither_see_the_way_there_nor_get_in",
        "tests/browser/test_people.py::test_the_log_is_searched_paged_and_verified",
        "tests/browser/test_queue_page.py::test_of_hundreds_the_foremost_stand_there_and_how_many_more_there_are",
        "tests/browser/test_queue_page.py::test_only_operators_order_and_only_admins_set_the_policy",
        "tests/browser/test_short_queue.py",
        "tests/browser/test_sums.py",
        "tests/browser/test_swapped.py",
        "tests/browser/test_table.py::test_an_address_typed_by_hand_shows_what_it_says_and_ignores_nonsense",
        "tests/browser/test_table.py::test_many_are_resumed_and_many_killed_after_asking",
        "tests/browser/test_table.py::test_a_row_is_worked_by_keys",
        "tests/browser/test_table.py::test_some_of_many_are_refused_and_it_says_which_way",
        "tests/browser/test_table.py::test_states_are_filtered",
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
    "the scheduler is killed at one more step; test_restart_processes.py and test_swapping_processes.py have one": (
        "tests/scheduler/test_found_late.py",
        "tests/scheduler/test_preemption_processes.py::test_a_scheduler_killed_while_it_gives_way_leaves_nothing_half",
        "tests/scheduler/test_restart_processes.py::test_launches_under_a_scheduler_that_is_killed_run_once_each",
        "tests/scheduler/test_storm.py",
        "tests/appliance/test_processes.py::test_both_may_be_killed_ten_times_in_a_row_as_soon_as_they_are_there",
        "tests/appliance/test_processes.py::test_it_can_be_stopped_while_it_waits_for_the_engine",
        "tests/cli/test_outage.py",
        "tests/cli/test_top.py::test_while_the_server_is_killed_it_says_so_keys_work_and_it_comes_back",
    ),
    "turns in real time; test_turns.py and test_gates.py have them on virtual time, test_turns_processes.py the kill": (
        "tests/scheduler/test_ranks.py::test_a_limit_is_kept_alone",
        "tests/scheduler/test_ranks.py::test_ranks_in_two_containers_have_their_turns_together",
        "tests/scheduler/test_ranks.py::test_two_trainings_share_two_cards_by_their_weights",
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

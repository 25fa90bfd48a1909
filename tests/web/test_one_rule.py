"""A rule that several places tell is told alike by all of them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tests.support.machine import make_container
from web.models import State

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def browser(ada):
    browser = Client()
    browser.force_login(ada)
    return browser


def ago(seconds: float):
    return NOW - timedelta(seconds=seconds)


def test_the_table_is_sorted_by_the_state_that_it_shows(browser, ada):
    for number, (name, fields) in enumerate(
        (state, fields)
        for fields_of_state in range(2)
        for state, fields in {
            "created": {"started_at": None},
            "running": {},
            "suspended": {"suspended_since": ago(9 - fields_of_state)},
            "paused": {"paused_at": ago(5), "suspended_since": ago(8) if fields_of_state else None},
            "exited": {"finished_at": ago(4 - fields_of_state), "exit_code": 0},
            "failed": {"finished_at": ago(4 - fields_of_state), "exit_code": 1},
            "killed": {"finished_at": ago(4 - fields_of_state), "exit_code": 0, "kill_requested_at": ago(4)},
        }.items()
    ):
        make_container(ada, f"{name}-{number}", **fields)
    states = [state.value for state in State for _ in range(2)]
    for sort, expected in (("state", states), ("-state", states[::-1])):
        items = browser.get("/", {"sort": sort, "state": "all"}).context["page"].items
        assert [item["state"] for item in items] == expected

"""A policy is described once, in the scheduler's table: the queue's page, documentation and settings say the same."""

from __future__ import annotations

import html

import pytest
from django.conf import settings
from django.test import Client

from scheduler.core.policies import POLICIES, described
from tests.support.appliance import ROOT


@pytest.mark.django_db
def test_the_queue_page_says_of_each_policy_what_the_record_says(ada, node):
    node.policies = [*described(), {"name": "new", "explanation": "Who asks <b>nicely</b>.", "bound": "", "source": ""}]
    node.save()
    browser = Client()
    browser.force_login(ada)
    page = html.unescape(browser.get("/queue/").content.decode())
    for policy in node.policies:
        assert f'value="{policy["name"]}"' in page
        assert policy["explanation"] in page
    assert "The call that was suspended last is served first." in page  # not "who was served last"


@pytest.mark.parametrize("name", POLICIES)
def test_the_documentation_says_of_each_policy_what_it_says_of_itself(name):
    policy = POLICIES[name]
    assert f"| `{name}` | {policy.explanation} | {policy.bound} |" in (ROOT / "docs" / "deciding.md").read_text()


def test_the_first_of_the_table_is_the_one_that_a_new_appliance_has():
    assert next(iter(POLICIES)) == settings.GPUSHARE_POLICY == "fair"

"""A policy is described once, in the scheduler's table: the queue's page, documentation and settings say the same."""

import html
import re

import pytest
from django.conf import settings

from scheduler.core.policies import POLICIES, described
from tests.support.appliance import ROOT
from tests.support.people import signed_in


@pytest.mark.django_db
def test_the_queue_page_says_of_each_policy_what_the_record_says(ada, node):
    node.policies = [*described(), {"name": "new", "explanation": "Who asks <b>nicely</b>.", "bound": "", "source": ""}]
    node.save()
    page = _page(ada, "/queue/")
    for policy in node.policies:
        assert f'value="{policy["name"]}"' in page
        assert policy["explanation"] in page
    assert "The newest request is served first." in page  # not "who was served last"


@pytest.mark.django_db
def test_a_page_says_how_each_decides_and_which_is_in_force(ada, node):
    assert "No scheduler has run here yet." in _page(ada, "/deciding/")
    node.policies, node.policy = described(), "best-fit"
    node.save()
    page = _page(ada, "/deciding/")
    for policy in described():
        assert all(text in page for text in policy.values())
    assert re.findall(r"(\S+)\s+<span class=\"tag\">current</span>", page) == ["best-fit"]
    assert 'href="/deciding/"' in _page(ada, "/queue/")


def _page(who, path):
    return html.unescape(signed_in(who).get(path).content.decode())


@pytest.mark.parametrize("name", POLICIES)
def test_the_documentation_says_of_each_policy_what_it_says_of_itself(name):
    policy = POLICIES[name]
    assert f"| `{name}` | {policy.explanation} | {policy.bound} |" in (ROOT / "docs" / "deciding.md").read_text()


def test_the_first_of_the_table_is_the_one_that_a_new_appliance_has():
    assert next(iter(POLICIES)) == settings.GPUSHARE_POLICY == "fair"

"""Budgets: read from the environment, each with a test that passes it."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from appliance.budgets import Budgets, read

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"^@pytest\.mark\.budget\((.*)\)\n(?:@.*\n)*(?:async )?def test_", re.MULTILINE)


def test_every_budget_has_a_test_that_passes_it():
    marked = {
        name
        for path in TESTS.rglob("test_*.py")
        for names in MARK.findall(path.read_text())
        for name in re.findall(r'"(\w+)"', names)
    }
    assert marked == {row.name for row in fields(Budgets)}
    assert len(marked) <= 12


def test_the_environment_changes_one_and_leaves_the_others():
    given = read({"GPUSHARE_BUDGET_CONSOLES": "7", "GPUSHARE_BUDGET_LOG_FOLLOWERS": "", "HOME": "/root"})
    assert given == Budgets(consoles=7)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "4MiB"])
def test_an_invalid_budget_is_an_error_that_says_so(value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="which is not a whole number of at least 1"):
        read({"GPUSHARE_BUDGET_CONSOLES": value})

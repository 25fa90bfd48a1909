"""One table of budgets: read from the environment, shown in a document."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from appliance import budgets
from appliance.budgets import Budgets, read

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "budgets.md"
MARK = re.compile(r"^@pytest\.mark\.budget\((.*)\)\n(?:@.*\n)*(?:async )?def test_", re.MULTILINE)


def test_the_document_has_the_table_as_it_is():
    assert budgets.table() in DOCUMENT.read_text(), "python -m appliance.budgets prints what belongs there"


def test_every_budget_has_a_test_that_passes_it():
    marked = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for names in MARK.findall(path.read_text())
        for name in re.findall(r'"(\w+)"', names)
    }
    assert marked == {row.name for row in fields(Budgets)}


def test_every_budget_says_for_whom_and_why():
    for row in fields(Budgets):
        whom = {"container", "process", "connection", "request", "session", "user", "address", "all"}
        assert row.metadata["whom"] in whom
        assert len(row.metadata["reason"].split()) > 5
        assert row.default >= 1


def test_the_environment_changes_one_and_leaves_the_others():
    given = read({"GPUSHARE_BUDGET_NEEDS": "7", "GPUSHARE_BUDGET_MAPS_BYTES": "1MiB", "HOME": "/root"})
    assert (given.needs, given.maps_bytes) == (7, 1 << 20)
    assert given.connections == Budgets().connections


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("GPUSHARE_BUDGET_NEEDS", "0", "GPUSHARE_BUDGET_NEEDS is '0', which is not a whole number of at least 1."),
        ("GPUSHARE_BUDGET_NEEDS", "-1", "which is not a whole number"),
        ("GPUSHARE_BUDGET_NEEDS", "1.5", "which is not a whole number"),
        ("GPUSHARE_BUDGET_NEEDS", "many", "which is not a whole number"),
        ("GPUSHARE_BUDGET_NEEDS", "4MiB", "which is not a whole number"),
        ("GPUSHARE_BUDGET_BODY_BYTES", "much", '"much" is not a size'),
        ("GPUSHARE_BUDGET_BODY_BYTES", "0MiB", "which is not a whole number of at least 1"),
        ("GPUSHARE_BUDGET_FRIENDS", "8", "GPUSHARE_BUDGET_FRIENDS is none of the budgets"),
    ],
)
def test_one_that_makes_no_sense_is_a_sentence(name: str, value: str, sentence: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=sentence):
        read({name: value})


def test_what_django_limits_by_itself_comes_from_the_table():
    assert settings.GPUSHARE_BUDGETS.body_bytes == settings.DATA_UPLOAD_MAX_MEMORY_SIZE

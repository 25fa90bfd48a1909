"""The names of PostgreSQL roles of nodes: 63 bytes at most, and none is another's."""

import pytest
from django.db import connection

from web.services.joining import rules

NAMES = ["gpushare", "a" * 50, "a" * 63, "a" * 62 + "b", "ä" * 31]


@pytest.mark.parametrize("database", NAMES)
def test_no_role_has_the_name_of_another_or_of_the_database(monkeypatch, database):
    monkeypatch.setitem(connection.settings_dict, "NAME", database)
    made = [rules.group(), *(rules.name_of_role(number) for number in (1, 2, 12, 99_999))]
    assert len({*made, database}) == len(made) + 1
    assert all(len(name.encode()) <= 63 for name in made)


def test_two_databases_whose_names_begin_alike_share_no_role(monkeypatch):
    found = []
    for database in NAMES[2:4]:
        monkeypatch.setitem(connection.settings_dict, "NAME", database)
        found += [rules.group(), rules.name_of_role(1)]
    assert len(set(found)) == 4


def test_a_short_name_is_said_as_it_is(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "NAME", "gpushare")
    assert (rules.group(), rules.name_of_role(3)) == ("gpushare_nodes", "gpushare_node_3")

"""Each server of a person has a container of its own: a start ends what an earlier one of its name has left."""

from __future__ import annotations

import re

import pytest
from gpushare_jupyterhub.names import LONGEST, container_name


def test_a_plain_name_stays_as_it_is():
    assert container_name("ada", "") == "jupyter-ada"
    assert container_name("ada", "lab.2") == "jupyter-ada-lab.2"


@pytest.mark.parametrize(
    ("one", "other"), [("my lab", "my-lab"), ("my lab", "my/lab"), ("x" * 80 + "1", "x" * 80 + "2"), ("ä", "ö")]
)
def test_two_servers_of_one_person_never_share_a_name(one, other):
    names = {container_name("ada", each) for each in (one, other)}
    assert len(names) == 2
    assert all(re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", name) and len(name) <= LONGEST for name in names)

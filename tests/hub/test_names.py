"""Each server of a person has a container of its own: a start ends what an earlier one of its name has left."""

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


def test_no_persons_server_has_the_name_of_anothers():
    parts = ["ann", "lee", "ann-lee", "ann_lee", "a", "nn-lee", "lee-ann", "ann lee", "ann.lee", "ä"]
    asked = [(person, server) for person in parts for server in ["", *parts]]
    # and one that is called as an earlier one with a digest
    asked += [("ann", container_name("ann-lee", "").removeprefix("jupyter_ann-")), ("ann", "lee-5e0a")]
    assert len({container_name(*each) for each in asked}) == len(asked)

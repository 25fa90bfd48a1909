"""Route names: each stands for one address, so that a link leads where it says."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from tests.support.machine import make_node
from tests.support.people import make_user, signed_in
from web.people.roles import Role


def names(patterns: Iterable[URLPattern | URLResolver], space: str = "") -> Iterator[str]:
    """Of all routes, as `reverse` takes them."""
    for each in patterns:
        if isinstance(each, URLResolver):
            yield from names(each.url_patterns, f"{space}{each.namespace}:" if each.namespace else space)
        elif each.name:
            yield space + each.name


def test_no_two_routes_share_a_name() -> None:
    found = Counter(names(get_resolver().url_patterns))
    assert {"dashboard", "container-list", "admin:index"} <= set(found)
    assert [name for name, times in found.items() if times > 1] == []


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/people/", "/people/ada/", "/nodes/", "/nodes/host/"])
def test_a_link_to_the_audit_log_opens_its_page(path: str) -> None:
    make_node()
    make_user("ada")
    browser = signed_in(make_user("root", Role.ADMIN))
    links = re.findall(r'href="([^"]*/audit/[^"]*)"', browser.get(path).content.decode())
    assert links
    for link in links:
        answer = browser.get(link)
        assert (answer.status_code, answer["Content-Type"]) == (200, "text/html; charset=utf-8"), link

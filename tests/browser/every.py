"""Every page that there is, as web/urls.py has them: a new one is looked at without being named anywhere."""

from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern
from playwright.sync_api import APIRequestContext

from tests.support import rows
from web import urls
from web.models import Container, Gpu

# Pages that are not in web/urls.py, and what others show only if they are asked to.
QUIET = {"schema-docs": "/api/v1/docs/", "not-there": "/nowhere/", "admin-site": "/admin/"}
MORE = {**QUIET, "by-person": "/?view=people", "ended": "/?state=failed", "failed": "/containers/<of one that failed>/"}

NOTHING = {MORE["not-there"], "/apps/open/"}  # without GPUSHARE_APPS there are no applications to open

# Of those in web/urls.py; what is not found to be a page by mistake is missed by the test.
NAMED = {"dashboard", "login", "queue_page", "deciding", "history", "reports", "fairness", "launch", "container", *MORE}


def names() -> list[str]:
    return [*dict.fromkeys(str(pattern.name) for pattern in urls.urlpatterns), *MORE]


def pages(asker: APIRequestContext, container: Container, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Name and address of what is a whole document to whoever `asker` is."""
    for name in names():
        where = address(name, container, gpu)
        if is_page(asker, where):
            yield name, where


def address(name: str, container: Container, gpu: Gpu) -> str:
    """With what stands for each argument of it. Fails where nothing is known to."""
    if name == "failed":
        broke = Container.objects.filter(exit_code=1).first() or rows.container(
            "broke", container.owner, gpu, finished_at=rows.ago(60), exit_code=1, reason="Out of host memory."
        )
        return f"/containers/{broke.pk}/"
    if name in MORE:
        return MORE[name]
    pattern: URLPattern = next(each for each in urls.urlpatterns if each.name == name)
    stands: dict[tuple[str, str], Any] = {
        ("pk", "UUIDConverter"): container.pk,
        ("pk", "IntConverter"): container.owner.pk,
        ("uuid", "StringConverter"): gpu.uuid,
        ("action", "SlugConverter"): "pause",
        ("username", "StringConverter"): container.owner.get_username(),
        ("name", "StringConverter"): gpu.node.name if name.startswith("node") else "user",  # a group that there is
        ("what", "SlugConverter"): "receivers",
        ("key", "StringConverter"): "nobody",
    }
    path = "/" + str(pattern.pattern)
    for argument, converter in pattern.pattern.converters.items():
        kind = type(converter).__name__
        assert (argument, kind) in stands, f"tests/browser/every.py: what stands for {argument} of the page {name}?"
        written = next(each for each in path.split("<")[1:] if each.split(">")[0].split(":")[-1] == argument)
        path = path.replace(f"<{written.split('>')[0]}>", str(stands[argument, kind]))
    return path


def is_page(asker: APIRequestContext, where: str) -> bool:
    """Whether a person can open it: not an action, a fragment, or figures for a chart."""
    if any(part in where for part in ("/log/", "/logout/")):
        return False  # one does not end while the container runs, the other would end the session
    answer = asker.get(where)
    found = "text/html" in answer.headers.get("content-type", "") and "<html" in answer.text()
    # Of what does not exist the page is always the same one: that an address leads there is this file's mistake.
    assert not found or answer.status != 404 or where in NOTHING, f"{where} leads to nothing"
    return found

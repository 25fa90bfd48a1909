"""A container's page, without a browser."""

import pytest
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.machine import make_container
from tests.support.people import signed_in

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("kind", EventKind)
def test_whatever_has_happened_to_it_is_shown(ada, gpu, kind):
    container = make_container(ada, "a", gpu)
    append(container, container.created_at, kind, gpu, detail="what came about")
    answer = signed_in(ada).get(f"/containers/{container.pk}/")
    assert answer.status_code == 200
    assert "what came about" in answer.content.decode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"exit_code": 1}, "Exit code 1."),
        ({"exit_code": 137, "reason": "Out of host memory."}, "Exit code 137. Ran 0 s. Out of host memory."),
        ({"exit_code": 143, "kill_requested_at": True, "reason": "Killed by op."}, "Killed by op."),
        ({"exit_code": 0}, None),
        (None, None),
    ],
)
def test_a_failed_container_has_the_same_banner_as_a_killed_one(ada, gpu, fields, expected):
    now = timezone.now()
    if fields is not None:
        fields = {**fields, "started_at": now, "finished_at": now}
        fields |= {"kill_requested_at": now} if "kill_requested_at" in fields else {}
    container = make_container(ada, "a", gpu, **(fields or {}))
    page = signed_in(ada).get(f"/containers/{container.pk}/").content.decode()
    banner = page[page.index('<div id="end">') :].split('<div class="two">')[0]
    assert ("Launch again" in banner and "?last" in banner) == bool(expected)
    assert page.count("Launch again</a>") == 1
    assert ("Loading the output." in page, "No output yet." in page) == (fields is not None, fields is None)
    if expected:
        assert expected in banner

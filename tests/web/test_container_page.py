"""A container's page, without a browser."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.support.events import EventKind, append
from tests.support.machine import make_container

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("kind", EventKind)
def test_whatever_has_happened_to_it_is_told(ada, gpu, kind):
    container = make_container(ada, "a", gpu)
    append(container, container.created_at, kind, gpu, detail="what came about")
    browser = Client()
    browser.force_login(ada)
    answer = browser.get(f"/containers/{container.pk}/")
    assert answer.status_code == 200
    assert "what came about" in answer.content.decode()

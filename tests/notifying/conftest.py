from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from tests.support import hooks, rows
from tests.support.people import make_user
from tests.web.conftest import _fresh_cache, _quick_hashes, ada, client, gpu, node  # noqa: F401
from web.models import Container, Receiver, Rule
from web.notifying import loop, outbox, watching

SECRET = "a secret of its own, long enough"
ALL_OF_THEM = 100  # messages at most, in one turn of a test


@pytest.fixture
def hook() -> Iterator[hooks.Hook]:
    with hooks.listening() as hook:
        yield hook


@pytest.fixture
def receiver(db: Any, hook: hooks.Hook) -> Receiver:
    made = Receiver.objects.create(name="hook", kind=Receiver.Kind.WEBHOOK, url=hook.url, secret=SECRET)
    Rule.objects.create(receiver=made)
    return made


@pytest.fixture
def engine(db: Any) -> Callable[[str], None]:
    """Says why the engine is away, or with "" that it is back. The scheduler itself is there for years."""
    here = rows.node(seen_at=timezone.now() + timedelta(days=900))

    def away(why: str) -> None:
        type(here).objects.filter(pk=here.pk).update(engine_error=why)

    return away


@pytest.fixture
def waiter(engine: Any) -> Callable[..., Container]:
    def make(name: str, owner: str = "ann", **fields: Any) -> Container:
        ann = User.objects.filter(username=owner).first() or make_user(owner)
        return rows.container(name, ann, rows.gpu(node=rows.node(seen_at=timezone.now() + timedelta(days=900))),
                              quota=1, **{"suspended_since": rows.ago(400)} | fields)  # fmt: skip

    return make


def turn(now: datetime) -> None:
    """One look at this moment, and everything sent that is due then."""
    watching.look(now)
    send_all(now)


def send_all(now: datetime) -> None:
    for destination in outbox.destinations(now):
        for _ in range(ALL_OF_THEM):
            if not loop.send_next(destination, now):
                break

"""Rows as a scheduler that lives would have written them: for tests of what happens before and after the scheduler."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone

from tests.support.eventually import PATIENCE
from web.models import Claim, Command, Container, Gpu, Node
from web.services import issuing

GIB = 2**30


def make_node(**fields: Any) -> Node:
    """One that lives for as long as a test takes on a busy machine, unless `fields` say otherwise."""
    now = timezone.now()
    lives = {"started_at": now, "seen_at": now + timedelta(hours=1)}
    return Node.objects.create(**{"name": "host", "engine": "process", "policy": "fair", **lives, **fields})


def make_gpu(node: Node, index: int = 0, capacity: int = 5 * GIB, **fields: Any) -> Gpu:
    sizes = {"total": capacity, "capacity": capacity, "most": capacity, "free": capacity}
    return Gpu.objects.create(node=node, uuid=f"GPU-{index}", index=index, name="Card", **sizes | fields)


def make_container(owner: User, name: str = "a", gpu: Gpu | None = None, quota: int = GIB, **fields: Any) -> Container:
    """A running one, unless `fields` say otherwise."""
    container = Container.objects.create(
        **{"owner": owner, "name": name, "image": "local", "engine": "process", "started_at": timezone.now(), **fields}
    )
    if gpu is not None:
        Claim.objects.create(container=container, gpu=gpu, quota=quota)
    return container


@contextmanager
def commands_answered(**outcome: Any) -> Iterator[None]:
    """While inside, every command is finished with this outcome shortly after it was written.

    From a thread of its own with its own connection, as the scheduler does it: the test needs a real transaction
    (`transaction=True`) for its commands to be seen.
    """
    stop = threading.Event()
    fields = {"outcome": Command.Outcome.DONE, **outcome}

    def answer() -> None:
        try:
            while not stop.wait(0.005):
                now = timezone.now()
                Command.objects.filter(done_at=None).update(taken_at=now, done_at=now, **fields)
        finally:
            connections.close_all()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        # No word comes with the answer; and on a busy machine it may take longer than a person is left waiting.
        with patch.object(issuing, "LOOK_AGAIN", 0.01), patch.object(issuing, "ANSWER_WITHIN", PATIENCE):
            yield
    finally:
        stop.set()
        thread.join()


def elsewhere(work: Callable[[], Any]) -> None:
    """In a thread with a connection of its own, as the scheduler and other requests have."""

    def run() -> None:
        work()
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()

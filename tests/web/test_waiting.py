"""How an outcome reaches whoever waits for it: the scheduler's word, or a look at the row where no word comes."""

import threading
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone

from tests.support.machine import make_container
from tests.support.redis_server import BIN, Redis, running_redis
from web.models import Command, Gpu
from web.services import issuing, steering

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(BIN is None, reason="needs the distribution's Redis"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def redis(settings) -> Iterator[Redis]:
    with running_redis() as server:
        layer = {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [server.url]}}
        settings.CHANNEL_LAYERS = {"default": layer}
        yield server


@pytest.fixture
def command(ada: User, gpu: Gpu, redis: Redis) -> Command:
    return steering.pause(ada, make_container(ada, gpu=gpu))


def _finish() -> None:
    Command.objects.update(done_at=timezone.now(), outcome=Command.Outcome.DONE, message="Paused.")


def test_a_word_through_redis_ends_the_wait(command, monkeypatch):
    monkeypatch.setattr(issuing, "LOOK_AGAIN", 3600.0)

    def scheduler() -> None:  # with its own connections and loop, as in another process
        _finish()
        async_to_sync(get_channel_layer().send)(issuing.outcome_channel(command.pk), {"type": "command.done"})
        connections.close_all()

    thread = threading.Thread(target=scheduler)
    thread.start()
    assert steering.wait_for(command, timeout=3600).message == "Paused."
    thread.join()


def test_while_redis_is_away_the_outcome_is_looked_for(command, redis):
    redis.stop()
    _finish()
    assert steering.wait_for(command).message == "Paused."

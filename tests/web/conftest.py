import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from rest_framework.test import APIClient

from tests.support.machine import make_gpu, make_node
from tests.support.people import client_for, make_user, signed_in
from web.models import Gpu, Node
from web.people.roles import Role


@pytest.fixture(autouse=True)
def _fresh_cache() -> None:
    cache.clear()  # throttles count in it


@pytest.fixture(autouse=True)
def _quick_hashes(settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def node(db) -> Node:
    return make_node()


@pytest.fixture
def gpu(node: Node) -> Gpu:
    return make_gpu(node)


@pytest.fixture
def ada(db) -> User:
    return make_user("ada")


@pytest.fixture
def client(ada: User) -> APIClient:
    """A REST client that speaks for ada."""
    return client_for(ada)


@pytest.fixture
def boss(db) -> User:
    return make_user("boss", Role.ADMIN)


@pytest.fixture
def browser(boss: User) -> Client:
    """The admin's."""
    return signed_in(boss)


@pytest.fixture
def rest(boss) -> APIClient:
    return client_for(boss)

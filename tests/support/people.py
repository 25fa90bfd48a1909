"""Users of each role, their tokens, and clients that speak for them."""

import json
from typing import Any

from django.contrib.auth.models import Group, User
from django.test import Client
from rest_framework.test import APIClient

from web.models import AuditEntry, Scope
from web.people import tokens
from web.people.roles import Role

A_PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFw+ysXFBOkKKtrt4JgbJDDd63qjWtx5x8XaqPlpRQF0 laptop"


def make_user(name: str = "ada", role: Role = Role.USER, **fields: Any) -> User:
    user = User.objects.create_user(username=name, **fields)
    user.groups.add(Group.objects.get_or_create(name=role.group)[0])
    return user


def client_for(user: User, scope: str = Scope.WRITE) -> APIClient:
    """A REST client that carries a fresh token of this user."""
    _, key = tokens.make(user, scope=scope)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {key}")
    client.default_format = "json"
    return client


def signed_in(user: User) -> Client:
    """A browser in which this user has signed in."""
    browser = Client()
    browser.force_login(user)
    return browser


def refused(answer: Any) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error.get("field", "")


def raw(rest: APIClient, method: str, path: str, body: object) -> Any:
    """As JSON writes it, half of a surrogate pair and infinity too."""
    return rest.generic(method, f"/api/v1/{path}", json.dumps(body), "application/json")


def last_entry() -> AuditEntry:
    return AuditEntry.objects.latest("id")

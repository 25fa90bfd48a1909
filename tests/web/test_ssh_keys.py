"""Public keys for ssh: what is taken for one, whose they are, and what the page and REST say."""

import base64
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from tests.support.people import A_PUBLIC_KEY, client_for, make_user, signed_in
from web.models import AuditEntry, SshKey
from web.people import ssh_keys, tokens

pytestmark = pytest.mark.django_db
FINGERPRINT = ssh_keys.fingerprint_of(base64.b64decode(A_PUBLIC_KEY.split()[1]))


def test_a_key_is_known_by_its_fingerprint_and_named_by_its_comment() -> None:
    user = make_user()
    client = client_for(user)
    made = client.post("/api/v1/ssh-keys/", {"key": f"  {A_PUBLIC_KEY}\n"}).json()
    assert (made["name"], made["kind"], made["fingerprint"]) == ("laptop", "ssh-ed25519", FINGERPRINT)
    assert client.post("/api/v1/ssh-keys/", {"key": A_PUBLIC_KEY}).json()["error"]["code"] == "key_known"
    other = make_user("bob")
    assert client_for(other).post("/api/v1/ssh-keys/", {"key": A_PUBLIC_KEY}).status_code == 201
    assert client.delete(f"/api/v1/ssh-keys/{made['id']}/").status_code == 204
    assert [each.user for each in ssh_keys.with_fingerprint(FINGERPRINT)] == [other]
    actions = list(AuditEntry.objects.filter(action__startswith="ssh-key").values_list("action", flat=True))
    assert sorted(actions) == ["ssh-key-added", "ssh-key-added", "ssh-key-removed"]


SHORT_RSA = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7JJjv2kYh2bR0o6mQwY8m0xY7Qm2oY5S0c4h5Yp1d8k3d2jv0mQ2l1r5yq6nS8m4K1b7v3e9t2w"
)
BAD: dict[str, str] = {
    "nothing": "",
    "words": "this is no key",
    "of a kind that is not known": "ssh-dss AAAAB3NzaC1kc3MAAACBAP",
    "cut off": A_PUBLIC_KEY[:40],
    "of two kinds": A_PUBLIC_KEY.replace("ssh-ed25519", "ssh-rsa", 1),
    "two": f"{A_PUBLIC_KEY}\n{A_PUBLIC_KEY}",
    "with options": f'command="id" {A_PUBLIC_KEY}',
    "damaged": SHORT_RSA,
}


@pytest.mark.parametrize("key", BAD.values(), ids=BAD)
def test_what_is_no_public_key_is_refused_at_its_field(key: str) -> None:
    answer = client_for(make_user()).post("/api/v1/ssh-keys/", {"key": key})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "key")
    assert not SshKey.objects.exists()


def test_a_private_key_is_not_taken_for_one() -> None:
    text = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----"
    answer = client_for(make_user()).post("/api/v1/ssh-keys/", {"key": text})
    assert "private key" in answer.json()["error"]["message"]


def test_a_token_that_ends_adds_no_key_that_outlives_it() -> None:
    _, key = tokens.make(make_user(), expires_at=timezone.now() + timedelta(hours=1))
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {key}")
    assert client.post("/api/v1/ssh-keys/", {"key": A_PUBLIC_KEY}, format="json").status_code == 403


def test_the_page_adds_and_removes_and_shows_the_host_key(settings: Any) -> None:
    settings.GPUSHARE_SSH = ("127.0.0.1", 2222)
    user = make_user()
    client = signed_in(user)
    page = client.get("/me/").content.decode()
    assert ssh_keys.host_fingerprint() in page
    assert "ssh CONTAINER@testserver -p 2222" in page
    assert "is not a public key" in client.post("/me/keys/", {"key": "x"}).content.decode()
    assert "is added" in client.post("/me/keys/", {"key": A_PUBLIC_KEY}).content.decode()
    key = SshKey.objects.get(user=user)
    assert "is removed" in client.post(f"/me/keys/{key.pk}/remove/").content.decode()
    assert "already" in client.post(f"/me/keys/{key.pk}/remove/").content.decode()


def test_rest_says_where_it_is_and_by_which_key_it_is_known(settings: Any) -> None:
    settings.GPUSHARE_SSH = ("127.0.0.1", 2222)
    answer = client_for(make_user()).get("/api/v1/ssh/").json()
    assert answer == {"port": 2222, "host_key": ssh_keys.host_key_line(), "fingerprint": ssh_keys.host_fingerprint()}
    before = ssh_keys.host_fingerprint()
    settings.SECRET_KEY = "another"
    assert ssh_keys.host_fingerprint() != before

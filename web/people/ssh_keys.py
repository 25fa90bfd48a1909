"""Public keys with which people sign in by ssh, and the key by which they know this host (web/door/)."""

import base64
import binascii
import hashlib
import hmac
from contextlib import suppress
from datetime import timedelta
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, IntegrityError, transaction
from django.utils import timezone

from web import audit
from web.errors import conflict, forbidden, invalid
from web.models import SshKey, Token
from web.spec.people import SshKeySpec

KINDS = (
    "ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
)  # fmt: skip
MOST = 50  # of a person
SHORTEST_RSA = 2048  # bits
NO_KEY = (
    "This is not a public key. Paste the one line of a file such as ~/.ssh/id_ed25519.pub; it begins with ssh-ed25519, "
    "ssh-rsa, ecdsa-… or sk-…."
)
PRIVATE = "This is a private key. Keep it secret, and paste the file beside it that ends with .pub."


def add(user: User, asked: Any, by: Token | None = None) -> SshKey:
    """The key that somebody brings (a `SshKeySpec`). `by` is the token that asks, if one does. Raises Problem."""
    if by is not None and by.expires_at is not None:
        raise forbidden("This token expires and a key does not: add it on the page, or with another token.")
    spec = SshKeySpec.parse(asked)
    kind, fingerprint, comment = _read(spec["key"])
    name = spec["name"] or comment
    try:
        with transaction.atomic():
            if SshKey.objects.filter(user=user).count() >= MOST:
                raise conflict(f"You have {MOST} keys already. Remove one first.", code="too_many_keys")
            key = SshKey.objects.create(user=user, name=name, kind=kind, fingerprint=fingerprint)
            audit.record(user.get_username(), "ssh-key-added", key.pk, name=name, fingerprint=fingerprint)
    except IntegrityError:
        raise conflict("You have added this key already.", code="key_known") from None
    return key


def remove(user: User, key: SshKey) -> None:
    """Whoever is connected with it is cut off within seconds."""
    number = key.pk
    with transaction.atomic():
        key.delete()
        whose = {"name": key.name, "fingerprint": key.fingerprint, "of": key.user.get_username()}
        audit.record(user.get_username(), "ssh-key-removed", number, **whose)


def with_fingerprint(fingerprint: str) -> list[SshKey]:
    """Of accounts that are active."""
    return list(SshKey.objects.select_related("user").filter(fingerprint=fingerprint, user__is_active=True))


def note_use(key: SshKey) -> None:
    with suppress(DatabaseError):  # full or read-only: coming in still has to work
        now = timezone.now()
        if key.last_used_at is None or now - key.last_used_at > timedelta(minutes=1):
            SshKey.objects.filter(pk=key.pk).update(last_used_at=now)


def _read(line: str) -> tuple[str, str, str]:
    """Kind, fingerprint and comment. Raises Problem."""
    if "PRIVATE KEY" in line:
        raise invalid(PRIVATE, "key")
    kind, _, rest = line.strip().partition(" ")
    body, _, comment = rest.strip().partition(" ")
    if kind not in KINDS or "\n" in line.strip():
        raise invalid(NO_KEY, "key")
    try:
        content = base64.b64decode(body, validate=True)
        found = load_ssh_public_key(f"{kind} {body}".encode())
    except (binascii.Error, ValueError, UnsupportedAlgorithm):
        raise invalid(NO_KEY, "key") from None
    if isinstance(found, RSAPublicKey) and found.key_size < SHORTEST_RSA:
        raise invalid(
            f"This RSA key has {found.key_size} bits; {SHORTEST_RSA} are the least. Make one of ed25519.", "key"
        )
    return kind, fingerprint_of(content), "".join(filter(str.isprintable, comment.strip()))[:100]


def fingerprint_of(content: bytes) -> str:
    """As ssh-keygen -l says it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def host_key() -> Ed25519PrivateKey:
    """Made of the secret key: so all web processes have the same, a backup has it, and no file lies about."""
    return Ed25519PrivateKey.from_private_bytes(
        hmac.digest(settings.SECRET_KEY.encode(), b"gpushare: host key for ssh, ed25519", "sha256")
    )


def host_key_line() -> str:
    """As it stands in known_hosts after the host's name."""
    return host_key().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def host_fingerprint() -> str:
    return fingerprint_of(base64.b64decode(host_key_line().split()[1]))

"""The anchor: the chain's last seal, noted in a file outside of the database.

Whoever writes the database can cut off the chain's end and set `Chain` back to what it was; this file then still names
the seal that is gone. The scheduler notes it each second (`keep`), from the side that strangers do not reach: what is
cut off within that second is not found.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from django.conf import settings

from web.models import Chain, Seal

NAME = "audit-anchor"


class Moved(Exception):
    """The seal that the anchor names is not in the chain any more; the message says which."""


def path() -> Path:
    return Path(settings.GPUSHARE_HOME) / NAME


def read() -> tuple[int, str] | None:
    """The number and the hash of the seal that it names; None if there is none yet. Raises ValueError."""
    try:
        noted = json.loads(path().read_text())
        return int(noted["number"]), str(noted["hash"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path()} is damaged ({error}): nobody can tell whether the chain's end is there.") from None


def keep() -> None:
    """Notes the chain's last seal, whole or not at all. Raises Moved, ValueError or OSError, and leaves it as it is."""
    noted = read()
    chain = Chain.objects.filter(id=1).first() or Chain()
    if noted == (chain.number, chain.hash) or (noted is None and chain.number == 0):
        return
    if noted is not None and not Seal.objects.filter(number=noted[0], hash=noted[1]).exists():
        raise Moved(
            f"The audit log was cut off or replaced: seal {noted[0]} is not what it was. "
            f"`manage.py verify_audit` tells more; {path()} stays as it is."
        )
    partial = path().with_suffix(f".{os.getpid()}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"number": chain.number, "hash": chain.hash}, file)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty one, which accuses somebody for ever
        partial.replace(path())
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()

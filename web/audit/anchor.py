"""The anchor: the chain's last seal, noted in a file outside of the database.

Whoever writes the database can cut off the chain's end and set `Chain` back to what it was; this file then still names
the seal that is gone. The scheduler notes it each second (`keep`), from the side that strangers do not reach: what is
cut off within that second is not found.

It begins once, before the first scheduler of a GPUSHARE_HOME takes its lock (`begin`). Where a scheduler has worked, an
anchor that is gone, damaged or names another seal is an error until an admin has looked at it (`accept`): whoever can
make the file go away could cut off the chain as well.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from web.audit.seals import BEGINNING
from web.models import Chain, Seal

NAME = "audit-anchor"
LOCK = "scheduler.lock"  # beside it: where that is, a scheduler has worked
ACCEPTED = "audit-accepted"  # the entry of an admin who takes the chain's end for what it should be


UNKNOWN = (
    "it is unknown whether the end of the chain was cut off. Compare what an earlier `verify_audit` printed (--known); "
    "`verify_audit --accept` then takes the chain as it is."
)


class Moved(Exception):
    """The seal that the anchor names is not in the chain any more; the message says which."""


def path() -> Path:
    return Path(settings.GPUSHARE_HOME) / NAME


def read() -> tuple[int, str] | None:
    """The number and the hash of the seal that it names; number 0: none yet. None where no scheduler has worked.

    Raises ValueError if it is gone or damaged.
    """
    try:
        noted = json.loads(path().read_text())
        return int(noted["number"]), str(noted["hash"])
    except FileNotFoundError:
        if path().with_name(LOCK).exists():
            raise ValueError(f"{path()} is gone: {UNKNOWN}") from None
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path()} is damaged ({error}): {UNKNOWN}") from None


def begin() -> None:
    """Before the first scheduler of this home: from now on there is one, which names no seal. Raises OSError.

    One that is there stays, also if another process makes it at this moment and notes a seal in it.
    """
    if not path().with_name(LOCK).exists():
        with contextlib.suppress(FileExistsError):
            _write(0, BEGINNING, place=os.link)


def keep() -> None:
    """Notes the chain's last seal, whole or not at all. Raises Moved, ValueError or OSError, and leaves it as it is."""
    noted = read()
    chain = Chain.objects.filter(id=1).first() or Chain()
    if noted == (chain.number, chain.hash) or (noted is None and chain.number == 0):
        return
    if noted and noted[0] and not Seal.objects.filter(number=noted[0], hash=noted[1]).exists():
        raise Moved(
            f"The audit log was cut off or replaced: seal {noted[0]} has changed. "
            f"`manage.py verify_audit` has details; {path()} stays as it is."
        )
    _write(chain.number, chain.hash)


def accept() -> None:
    """Notes the chain's last seal, whatever was noted before. Raises OSError."""
    chain = Chain.objects.filter(id=1).first() or Chain()
    _write(chain.number, chain.hash)


def _write(number: int, noted: str, place: Callable[[Path, Path], object] = os.replace) -> None:
    """`place` gives the whole file its name: `os.link` fails if there is one of that name, `os.replace` overwrites."""
    partial = path().with_suffix(f".{os.getpid()}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"number": number, "hash": noted}, file)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty one, which accuses somebody for ever
        place(partial, path())
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()

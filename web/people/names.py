"""When two names are one, the same on every database, and which letters a name may have together."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User

if TYPE_CHECKING:
    from django.db.models import QuerySet


_EAST = {"CJK", "IDEOGRAPHIC", "LATIN"}
# Scripts that are written together; letters of any others in one name are there to look like those of another.
_TOGETHER = (
    _EAST | {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"},
    _EAST | {"HANGUL"},
    _EAST | {"BOPOMOFO"},
)
# Cyrillic, Greek and phonetic letters that look as Latin ones do.
_LOOKALIKES = str.maketrans("аеорсухіјѕԁһԛԝӏαινορυɑɡɩ", "aeopcyxijsdhqwlaivopuagi")


def key(name: str) -> str:
    """What two names share that are taken for one: by their form, their case, or letters that look the same.

    By way of the capitals, of which some letters share one: "ı" and "i".
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).upper().casefold())
    return folded.replace("i\u0307", "i").translate(_LOOKALIKES)


def alike(others: QuerySet[Any], field: str, name: str) -> str:
    """The name of one of `others` that is taken for this name; "" if there is none.

    Read and compared here: SQLite knows the case of ASCII letters alone, and PostgreSQL goes by its locale.
    """
    wanted = key(name)
    return next((each for each in others.values_list(field, flat=True) if key(each) == wanted), "")


def account_of(name: str) -> User | None:
    """Whose name a directory's is: the account of exactly this name, else the one that differs from it in case alone.

    Nothing wider: who has a name that only looks the same is somebody else.
    """
    people = get_user_model().objects
    exact: User | None = people.filter(username=name).first()
    if exact is not None:
        return exact
    found = [pk for pk, each in people.values_list("pk", "username") if each.lower() == name.lower()]
    return people.get(pk=found[0]) if len(found) == 1 else None


def fault_of_scripts(name: str) -> str:
    """Why a new name may not have these letters together; "" if it may."""
    scripts = {unicodedata.name(sign, "unknown").split()[0] for sign in name if sign.isalpha()}
    if len(scripts) < 2 or any(scripts <= together for together in _TOGETHER):
        return ""
    listed = " and ".join(sorted(script.capitalize() for script in scripts))
    return f"This name mixes {listed} letters, so that it can look like another. Use the letters of one script."

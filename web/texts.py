"""Text that comes from outside: what no database, command line or variable can hold is refused wherever it enters."""

import re
from typing import Any

# PostgreSQL can neither store nor look for a NUL character; half of a surrogate pair cannot be encoded at all. No
# person types either.
_REFUSED = re.compile("[\0\ud800-\udfff]")


def fault_of(data: Any) -> str:
    """What is wrong with a text somewhere in `data` (texts, lists, mappings and what is neither), or "".

    Without recursion: it may be nested as deeply as its sender likes.
    """
    left = [data]
    while left:
        match left.pop():
            case str() as text:
                if found := _REFUSED.search(text):
                    return "a NUL character" if found[0] == "\0" else "half of a surrogate pair"
            case list() | tuple() as items:
                left += items
            case dict() as items:
                left += [*items, *items.values()]
    return ""


def fault_of_setting(value: str) -> str:
    """What of this value cannot stand in a line NAME=VALUE of a file of settings, or "".

    Such a file is read line by line, by systemd too: a value with a line's end would be a setting more, one that ends
    with a backslash takes the next line to itself, and one that begins with a quotation mark goes on to the next one.
    """
    if not value.isprintable():
        return "a control character"
    return "a backslash" if "\\" in value else "a quotation mark" if value[:1] in tuple("\"'") else ""

"""Filters for templates."""

from collections.abc import Iterable, Mapping
from typing import Any

from django import template
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from web import sizes
from web.sizes import format_size

register = template.Library()


@register.filter
def size(count: int | None) -> str:
    """1610612736 → "1.5 GiB"."""
    return format_size(count or 0)


@register.filter
def person(name: str) -> str:
    """A user name as a link to that person's page; as text where no address can hold it."""
    try:
        return format_html('<a href="{}">{}</a>', reverse("person", args=[name]), name)
    except NoReverseMatch:
        return name


@register.filter
def get(values: Mapping[str, Any], name: str) -> Any:
    """values[name], or nothing."""
    return values.get(name, "")


@register.filter
def duration(seconds: float | None) -> str:
    """75 → "1 min 15 s", as static/gpushare/parts/format.js has it."""
    whole = max(0, int(seconds or 0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole // 60 % 60} min"
    return f"{whole // 86400} d {whole // 3600 % 24} h"


@register.filter
def percent(part: float) -> float:
    return 100 * part


@register.filter
def part(value: float, of: float) -> float:
    """How much of a whole, in percent."""
    return 100 * value / of if of else 0.0


@register.filter
def tenths(value: float | None) -> str:
    return sizes.tenths(value or 0)


@register.simple_block_tag
def sheet(content: str, labelled: str, columns: str, kind: str = "stack") -> str:
    """A table that scrolls by itself, under the title whose id is `labelled`; the block is its rows.

    Columns are separated by "|": "#" before a name is a column of figures, "=" after it begins its tooltip, and "*" is
    the column of buttons.
    """
    heads = []
    for column in columns.split("|"):
        name, _, title = column.lstrip("#*").partition("=")
        form = {"#": "number", "*": "acts"}.get(column[0], "")
        heads.append({"name": name, "title": title, "kind": form})
    given = {"labelled": labelled, "heads": heads, "kind": kind, "rows": content}
    return render_to_string("parts/sheet.html", given)


@register.simple_block_tag(takes_context=True)
def post(context: template.Context, content: str, kind: str = "", **hidden: object) -> str:
    """A form that posts to its own page; `kind` is its class, `hidden` what else it sends."""
    given = {"csrf_token": context.get("csrf_token"), "kind": kind, "hidden": hidden.items(), "content": content}
    return render_to_string("parts/post.html", given)


@register.inclusion_tag("parts/choices.html")
def choices(given: Iterable[Any], chosen: object) -> dict[str, object]:
    """Options of a select: of (value, label) pairs, or of values that are their own labels."""
    pairs = [each if isinstance(each, tuple) else (each, each) for each in given]
    return {"options": [(value, label, value == chosen) for value, label in pairs]}


@register.inclusion_tag("parts/pick.html")
def pick(
    form: str,
    name: str,
    label: str,
    given: Iterable[Any],
    chosen: object,
    *,
    first: str = "",
    at: object = "",
    size: str = "",
) -> dict[str, object]:
    """A select with its label. `first`: the option that says nothing; `form` and `at`: of its id; `size`: its class."""
    return {"name": name, "label": label, "given": given, "chosen": chosen, "first": first, "size": size,
            "id": "-".join([form, name, *[str(at)] * bool(at)])}  # fmt: skip

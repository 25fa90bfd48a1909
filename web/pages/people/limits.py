"""Allowances as people read and write them: sizes in GiB, lists one a line, and of each limit where it comes from."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from django.contrib.auth.models import User
from django.http import QueryDict
from django.utils.timezone import localtime

from web.errors import invalid
from web.models import Allowance, Container, Gpu
from web.people import allowances, shares
from web.sizes import exact_size, format_size, parse_size
from web.spec import periods
from web.spec.fields import SizeField, StrictInteger, StrictNumber
from web.spec.people import AllowanceSpec

LABELS = {
    "gpu_memory": ("GPU memory", "Quotas of all live containers together: 40GiB, 1.5TiB"),
    "containers": ("Containers", "At once"),
    "gib_hours": ("GiB × hours", "VRAM held in seven days"),
    "priority_lowest": ("Lowest priority", "-100 to 100"),
    "priority_highest": ("Highest priority", "-100 to 100"),
    "compute_weight": ("Compute weight", "Highest of one container: 1 to 1000; 100 is usual"),
    "compute_limit": ("GPU time limit (%)", "Highest of one container: 1 to 100"),
    "reservations": ("Reservations", "Not yet over; without a limit 5"),
    "reserved_gib_hours": ("GiB × hours reserved", "From now on"),
    "reserved_days": ("Days ahead", "How far ahead to reserve; without a limit 14"),
    "images": ("Images", "One pattern a line: lab/*, nvcr.io/nvidia/pytorch:*"),
    "gpus": ("GPUs", "None ticked: all GPUs, new ones included"),
}
KINDS = {"images": "area", "gpus": "cards"}  # how what is no single line is asked for
NOTHING = "none at all"  # how an empty list is written and chosen


def in_force(user: User, usage: Mapping[str, float]) -> list[dict[str, Any]]:
    """Each limit with what of it is in use (`usage`, by name) and where it comes from. For templates."""
    rows = []
    for name, limit in allowances.explained(user).items():
        used = usage.get(name)
        rows.append(
            {
                "name": name,
                "label": LABELS[name][0],
                "used": "" if used is None else _words(name, used),
                "most": "no limit" if limit.value is None else _words(name, limit.value),
                "part": min(100.0, 100 * used / limit.value) if used is not None and limit.value else None,
                "full": used is not None and limit.value is not None and used >= limit.value,
                "explanation": limit.explanation,
                "tells": used is not None or bool(limit.rows),
                "list": name in KINDS,
            }
        )
    return rows


def usage(user: User, gib_hours: float) -> dict[str, float]:
    """What somebody uses of the limits that add up."""
    return {
        "gpu_memory": allowances.quota_held(user),
        "containers": Container.objects.live().filter(owner=user).count(),
        "gib_hours": gib_hours,
    }


def fields(allowance: Allowance | None, typed: QueryDict | None = None) -> list[dict[str, Any]]:
    """A form's fields, filled with what there is, or with what was `typed`."""
    found = []
    for name, (label, hint) in LABELS.items():
        value = None if allowance is None else getattr(allowance, name)
        field: dict[str, Any] = {"name": name, "label": label, "hint": hint, "kind": KINDS.get(name, "line")}
        if name == "gpus":
            stored = [NOTHING] if value == [] else value or []
            field["cards"] = _cards(stored, stored if typed is None else typed.getlist(name))
        else:
            field["value"] = str(typed.get(name, "")) if typed is not None else _text(name, value)
        found.append(field)
    return found


def _cards(stored: list[str], ticked: list[str]) -> list[dict[str, Any]]:
    """Those to choose from: all that are here, those that were given and are not, and none of them."""
    here = Gpu.objects.filter(present=True).values_list("uuid", flat=True)
    named = {**_named([*here, *(uuid for uuid in stored if uuid != NOTHING)]), NOTHING: NOTHING}
    return [{"value": value, "label": label, "ticked": value in ticked} for value, label in named.items()]


def _named(uuids: Collection[str]) -> dict[str, str]:
    """What people call these cards: index, name and host; a UUID alone where there is no such card now."""
    here = {gpu.uuid: gpu for gpu in Gpu.objects.filter(uuid__in=uuids, present=True).select_related("node")}
    return {
        uuid: f"{gpu.index} · {gpu.name} · {gpu.node.name}" if (gpu := here.get(uuid)) else f"{uuid} · not here now"
        for uuid in uuids
    }


def asked(form: QueryDict) -> dict[str, Any]:
    """An `AllowanceSpec` of what was typed: an empty field is no limit. Raises Problem."""
    spec = {name: _read(name, str(form[name])) for name in LABELS if name in form and name != "gpus"}
    if "gpus" in form:  # which has an empty one among them, so that no tick at all is an answer
        ticked = [uuid for uuid in form.getlist("gpus") if uuid]
        if NOTHING in ticked and len(ticked) > 1:
            raise invalid(f"Choose GPUs or “{NOTHING}”, not both.", "gpus")
        spec["gpus"] = [] if ticked == [NOTHING] else ticked or None
    return spec


def size_of(form: QueryDict) -> int:
    """The GPU memory that was typed. Raises Problem."""
    return int(_read("gpu_memory", form.get("gpu_memory", "")))


def shares_fields(user: User) -> dict[str, Any]:
    """A person's shares as the form has them."""
    row = shares.of(user)
    until = f"{localtime(row.boost_until):%Y-%m-%d %H:%M}" if row.boost_until else ""
    return shares.as_dict(row) | {"boost_until": until}


def asked_shares(form: QueryDict) -> dict[str, Any]:
    """A `SharesSpec` of what was typed: an empty field has its default. Raises Problem."""
    spec: dict[str, Any] = {
        name: 1 if (said := number(form.get(name, ""), name)) is None else said for name in ("shares", "boost")
    }
    spec |= {name: str(form[name]).strip() or None for name in ("boost_until", "share_group") if name in form}
    with suppress(ValueError):  # what is no time, the field refuses
        if spec.get("boost_until"):
            spec["boost_until"] = periods.local(spec["boost_until"]).isoformat()
    return spec


def number(text: str, name: str) -> int | None:
    """A whole number, or None for nothing. Raises Problem."""
    try:
        return int(text) if text.strip() else None
    except ValueError:
        raise invalid("This has to be a whole number.", name) from None


def _words(name: str, value: Any) -> str:
    if name == "gpu_memory":
        return format_size(int(value))
    if name == "gpus":
        return "; ".join(_named(value).values()) or NOTHING
    if isinstance(value, tuple | list):
        return ", ".join(value) or NOTHING
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _text(name: str, value: Any) -> str:
    """As `_read` takes it."""
    if value is None:
        return ""
    if name == "gpu_memory":
        return exact_size(value)
    if isinstance(value, list):
        return "\n".join(value) or NOTHING
    return str(value).removesuffix(".0")


def _read(name: str, text: str) -> Any:
    text = text.strip()
    if not text:
        return None
    try:
        match AllowanceSpec().fields[name]:
            case SizeField():
                return parse_size(text)
            case StrictInteger():
                return int(text)
            case StrictNumber():
                return float(text)
    except ValueError as error:
        words = str(error) if name == "gpu_memory" else "This has to be a number."
        raise invalid(words, name) from None
    return [] if text == NOTHING else [line.strip() for line in text.splitlines() if line.strip()]

"""What people may choose from: profiles that the hub's admin writes, and nothing else.

    [
        {"name": "Small: 8 GiB", "launch": {"image": "lab/notebook", "gpu_memory": "8GiB"}},
        {"name": "Own choice", "launch": {"image": "lab/notebook"},
         "choices": {"gpu_memory": ["8GiB", "24GiB"], "compute_weight": [50, 100]}},
    ]

`launch` are fields of a launch as the appliance's REST has them; of `choices` the first of each is taken unless another
one is chosen. What a browser or a script sends is looked up here, never passed on.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Profile = Mapping[str, Any]

# The spawner's own: no profile may say whose a notebook is, or what it is called.
RESERVED = {"name", "owner", "ports", "interactive", "tty", "remove_when_done"}
LABELS = {
    "gpu_memory": "GPU memory", "gpus": "GPUs", "image": "Image", "compute_weight": "Compute weight",
    "compute_limit": "GPU time limit (%)", "memory": "Host memory", "cpus": "CPU cores",
}  # fmt: skip


class BadProfiles(ValueError):
    """The hub's configuration makes no sense; with a sentence for its admin."""


class BadChoice(ValueError):
    """Somebody chose what is not offered; with a sentence for them."""


def check(profiles: Sequence[Profile]) -> Sequence[Profile]:
    """Raises BadProfiles."""
    if not profiles:
        raise BadProfiles("There has to be a profile at least.")
    for profile in profiles:
        if unknown := profile.keys() - {"name", "description", "launch", "choices"}:
            raise BadProfiles(f"A profile has no {sorted(unknown)[0]!r}.")
        choices = profile.get("choices", {})
        if not isinstance(profile.get("name"), str) or "image" not in {*profile.get("launch", {}), *choices}:
            raise BadProfiles("A profile has a name, and an image in its launch.")
        if reserved := RESERVED & {*profile.get("launch", {}), *choices}:
            raise BadProfiles(f"The spawner itself says the {sorted(reserved)[0]!r} of a launch.")
        if empty := [field for field, offered in choices.items() if not offered]:
            raise BadProfiles(f"{profile['name']}: nothing is offered for {empty[0]!r}.")
    if len({profile["name"] for profile in profiles}) < len(profiles):
        raise BadProfiles("Two profiles have the same name.")
    return profiles


def launch_of(profiles: Sequence[Profile], options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a launch for what somebody chose: `profile`, by name, and a choice by field. Raises BadChoice."""
    name = options.get("profile", profiles[0]["name"])
    profile = next((each for each in profiles if each["name"] == name), None)
    if profile is None:
        raise BadChoice(f'There is no profile "{name}". There are: {", ".join(each["name"] for each in profiles)}.')
    choices = profile.get("choices", {})
    if unknown := options.keys() - {"profile", *choices}:
        raise BadChoice(f'"{name}" lets nobody choose {sorted(unknown)[0]!r}.')
    chosen = {field: _one_of(field, offered, options.get(field)) for field, offered in choices.items()}
    return {**profile["launch"], **chosen}


def _one_of(field: str, offered: Sequence[Any], asked: Any) -> Any:
    """As it is offered: a form sends texts, where a number is meant."""
    if asked is None:
        return offered[0]
    for each in offered:
        if str(each) == str(asked):
            return each
    raise BadChoice(f"{asked} is not offered for {field}. There are: {', '.join(map(str, offered))}.")


def form(profiles: Sequence[Profile]) -> str:
    """The inside of an HTML form."""
    return "\n".join(_row(number, profile) for number, profile in enumerate(profiles))


def options_of(profiles: Sequence[Profile], sent: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What that form sends, as `launch_of` takes it. Raises BadChoice."""
    number = next(iter(sent.get("profile", ["0"])))
    if not number.isdecimal() or int(number) >= len(profiles):
        raise BadChoice("There is no such profile.")
    profile = profiles[int(number)]
    chosen = {field: sent[key][0] for field in profile.get("choices", {}) if sent.get(key := f"{number}:{field}")}
    options = {"profile": profile["name"], **chosen}
    launch_of(profiles, options)
    return options


def _row(number: int, profile: Profile) -> str:
    checked = " checked" if number == 0 else ""
    selects = "".join(_select(number, field, offered) for field, offered in profile.get("choices", {}).items())
    description = f"<p>{escape(profile['description'])}</p>" if profile.get("description") else ""
    return (
        f'<div class="mb-3"><label><input type="radio" name="profile" value="{number}"{checked}> '
        f"<strong>{escape(profile['name'])}</strong></label>{description}{selects}</div>"
    )


def _select(number: int, field: str, offered: Sequence[Any]) -> str:
    options = "".join(f"<option>{escape(str(each))}</option>" for each in offered)
    label = escape(LABELS.get(field, field))
    return f'<label>{label} <select class="form-select" name="{number}:{escape(field)}">{options}</select></label> '

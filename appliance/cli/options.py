"""What the commands share: options that mean the same everywhere, and completion of containers' names."""

import atexit
from typing import Annotated

import typer

from appliance.cli import login
from appliance.cli.client import ANSWER, Client
from appliance.cli.errors import Problem
from appliance.cli.text import seconds

COMPLETION_WAIT = 1.0  # seconds: somebody has pressed a key and waits


def connect(account: login.Login | None = None, timeout: float = ANSWER) -> Client:
    """For the rest of this process."""
    client = Client(account or login.find(), timeout)
    atexit.register(client.close)
    return client


def names(incomplete: str) -> list[tuple[str, str]]:
    """The containers that live, with their states; nothing where that cannot be known."""
    try:
        found = connect(timeout=COMPLETION_WAIT).containers()
        return [(each["name"], each["state"]) for each in found if each["name"].startswith(incomplete)]
    except Problem:
        return []


def percent(text: str) -> int | None:
    """What --compute-limit says."""
    if text == "none":
        return None
    if not text.removesuffix("%").isdecimal():
        raise Problem(f"--compute-limit: {text} is not a percentage", code="usage", hint="give 1 to 100, or none")
    return int(text.removesuffix("%"))


Filters = Annotated[
    list[str] | None,
    typer.Option(
        "-f", "--filter", metavar="NAME=VALUE", help="Filter by state, owner, name, image, namespace, gpu or node."
    ),
]
Sort = Annotated[
    str | None, typer.Option("--sort", metavar="[-]COLUMN", help="Order by a column; -COLUMN: the largest first.")
]
Form = Annotated[
    str | None, typer.Option("--format", metavar="COLUMNS|json", help="Columns: name,used; or one JSON object a line.")
]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Reason, kept in the audit log.")]
Container = Annotated[
    str, typer.Argument(metavar="CONTAINER", help="Name, id, or start of an id.", autocompletion=names)
]
Containers = Annotated[
    list[str],
    typer.Argument(metavar="CONTAINER", help="Names, ids, or starts of ids.", autocompletion=names),
]


def duration(field: str, text: str | None) -> float | None:
    """Seconds. Raises Problem."""
    try:
        return None if text is None else seconds(text)
    except ValueError as error:
        raise Problem(str(error), field=field) from None

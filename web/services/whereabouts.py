"""Which host keeps what of a container: its output and its terminal are with the scheduler that runs it.

The web side reaches those of its own host alone: output through files, terminals through a socket in GPUSHARE_HOME.
"""

from __future__ import annotations

from django.conf import settings

from web.errors import Problem
from web.models import Container, Node


def require_here(container: Container, what: str) -> None:
    """Refuses, with where it is, what only another host has. `what`: "output" or "terminal"."""
    if container.node_name in ("", settings.GPUSHARE_NODE) or not Node.several():
        return
    raise Problem(
        "elsewhere",
        f'The {what} of "{container.name}" is on {container.node_name}, and these pages are served by '
        f"{settings.GPUSHARE_NODE}, which does not reach it. On {container.node_name} itself it is there.",
        409,
    )

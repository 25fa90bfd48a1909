"""A file of settings, as systemd's EnvironmentFile reads it: what is run by hand has what the services have.

In an installed package `gpushare.env` beside manage.py leads to /etc/gpushare/gpushare.env; a checkout may have one.
"""

from pathlib import Path

PLACE = Path(__file__).resolve().parents[1] / "gpushare.env"


def read(path: Path = PLACE) -> dict[str, str]:
    """NAME=VALUE, a line each; a value goes to its line's end, quotes around it off. Empty if it may not be read."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (FileNotFoundError, PermissionError):
        return {}
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith(("#", ";"))]
    return {name.strip(): _unquoted(value.strip()) for name, _, value in pairs}


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value

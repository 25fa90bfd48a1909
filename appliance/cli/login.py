"""Which appliance, and as whom: from the environment, else from `gpushare login`, else from this very host."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance import envfile
from appliance.cli.errors import Problem


@dataclass(frozen=True)
class Login:
    url: str
    token: str


def folder(environ: Mapping[str, str]) -> Path:
    if given := environ.get("GPUSHARE_CONFIG"):
        return Path(given).expanduser()
    return Path(environ.get("HOME") or "~").expanduser() / ".config" / "gpushare"


def tidy(url: str) -> str:
    """http://host:8000 for `host:8000`, `http://host:8000/` and an address pasted from a browser's API page."""
    url = url.strip().rstrip("/").removesuffix("/api/v1").rstrip("/")
    return url if "://" in url else f"http://{url}"


def find(environ: Mapping[str, str] = os.environ) -> Login:
    """A stored or host token belongs to one address and is never sent to another."""
    url = tidy(environ["GPUSHARE_URL"]) if environ.get("GPUSHARE_URL") else ""
    if token := environ.get("GPUSHARE_TOKEN"):
        return Login(url or (stored.url if (stored := _stored(environ)) else _host_url(environ)), token)
    for known in (_stored(environ), _host(environ)):
        if known and url in ("", known.url):
            return known
    where = f" for {url}" if url else ""
    raise Problem(f"not logged in{where}", code="not_logged_in", hint="gpushare login URL, or set GPUSHARE_TOKEN")


def store(login: Login, environ: Mapping[str, str] = os.environ) -> Path:
    """Readable by its owner alone from the first byte on; whole or not at all."""
    home = folder(environ)
    path, new = home / "login.json", home / f"login.json.{os.getpid()}"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"url": login.url, "token": login.token}, file)
        new.replace(path)
    except OSError as error:
        raise Problem(
            f"cannot write {path}: {error.strerror}", hint="set GPUSHARE_CONFIG to a folder of yours"
        ) from None
    return path


def forget(environ: Mapping[str, str] = os.environ) -> Path:
    path = folder(environ) / "login.json"
    path.unlink(missing_ok=True)
    return path


def _stored(environ: Mapping[str, str]) -> Login | None:
    path = folder(environ) / "login.json"
    try:
        found = json.loads(path.read_text())
        return Login(str(found["url"]), str(found["token"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise Problem(f"{path} cannot be read", code="not_logged_in", hint="log in again: gpushare login") from None


def _host_url(environ: Mapping[str, str]) -> str:
    environ = {**envfile.read(), **environ}
    host = environ.get("HOST") or "127.0.0.1"
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{environ.get('PORT') or 8000}"


def _host(environ: Mapping[str, str]) -> Login | None:
    """On the appliance's own host its admin's token serves, for those who may read it."""
    checkout = Path(__file__).resolve().parents[2]
    home = Path({**envfile.read(), **environ}.get("GPUSHARE_HOME") or checkout / "var")
    try:
        return Login(_host_url(environ), (home / "admin-token").read_text().strip())
    except OSError:
        return None

"""What a launch may mount, publish and begin in: named volumes, folders under the allowed roots, ports in the range."""

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from rest_framework import serializers

from web.errors import Problem, invalid
from web.spec.inside.reserved import covered_by, kernels_own

_NAMED = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,62}")
LONGEST_VOLUME = 4400  # characters: a name, a path of the kernel and the mode
_PORT = re.compile(r"(\d{1,5}):(\d{1,5})(?:/(tcp|udp))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Volume:
    """`source` is a folder of the host by its full path, or a volume's name; `target` a path inside the container."""

    source: str
    target: str
    read_only: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.target}:{'ro' if self.read_only else 'rw'}"


def parse_volume(text: str) -> Volume:
    """`SOURCE:TARGET[:ro|rw]`. Raises Problem."""
    parts = text.split(":")
    if len(parts) == 2:
        parts.append("rw")
    if len(parts) != 3 or not parts[0] or parts[2] not in ("ro", "rw"):
        raise invalid('A volume is "source:target", with ":ro" behind it to mount it read-only.', "volumes")
    source, target, mode = parts
    if not target.startswith("/") or posixpath.normpath(target) in ("/", "//"):
        raise invalid("The target of a volume is a folder inside the container, such as /data.", "volumes")
    target = "/" + posixpath.normpath(target).lstrip("/")
    if place := covered_by(target):
        message = f"Nothing may be mounted at {target}: it would cover {place}."
        raise Problem("forbidden", message, 400, "volumes")
    if source.startswith("/"):
        source = "/" + posixpath.normpath(source).lstrip("/")
    elif not _NAMED.fullmatch(source):
        raise invalid("The source of a volume is a name, or a folder by its full path.", "volumes")
    return Volume(source, target, mode == "ro")


def check_volume(text: str) -> str:
    """A volume in one normal form, with the mode always there."""
    if len(text) > LONGEST_VOLUME:
        raise serializers.ValidationError(f"This is longer than {LONGEST_VOLUME} characters.")
    try:
        return str(parse_volume(text))
    except Problem as problem:
        raise serializers.ValidationError(problem.message, code=problem.code) from None


def check_folder(path: str) -> str:
    """A folder inside the container in one normal form."""
    if not path.startswith("/"):
        raise serializers.ValidationError("This has to be a folder by its full path, such as /work.")
    path = "/" + posixpath.normpath(path).lstrip("/")
    if place := kernels_own(path):
        # A way out of the container for whoever finds a descriptor there that is not the container's (CVE-2024-21626).
        raise serializers.ValidationError(f"A command cannot begin in {place}: that is the kernel's.", code="forbidden")
    return path


def own_roots(roots: Iterable[str | Path], username: str) -> list[Path]:
    """The folders of the host that somebody's volumes may come from. `{user}` stands for who launches."""
    if username in (".", ".."):
        return []
    return [Path(str(root).replace("{user}", username)) for root in roots]


def roots_of(username: str) -> list[str]:
    """The folders of the host below which this person may mount whatever there is."""
    return [str(root) for root in own_roots(settings.GPUSHARE_VOLUME_ROOTS, username)]


def require_roots(username: str, volumes: Iterable[str]) -> None:
    """Refuses a host folder outside the allowed roots.

    Whether a folder leads out of its root by a symbolic link can only be seen on the host: the engine looks again.
    """
    roots = own_roots(settings.GPUSHARE_VOLUME_ROOTS, username)
    for volume in map(parse_volume, volumes):
        if volume.source.startswith("/") and not any(Path(volume.source).is_relative_to(root) for root in roots):
            where = f"folders under {', '.join(map(str, roots))} and named volumes" if roots else "named volumes"
            allowed = f"only {where}. An admin allows folders with GPUSHARE_VOLUME_ROOTS and a restart."
            raise Problem("forbidden", f"{volume.source} may not be mounted: {allowed}", 400, "volumes")


def require_no_session_leaks(ports: Sequence[str]) -> None:
    """Refuses published ports while the dashboard is served without TLS. Raises Problem.

    Cookies know no ports: a browser sends the dashboard's session, HttpOnly as it is, to each port of its host's name.
    With TLS it is sent to nothing that has no certificate for that name. UDP is not what browsers speak without TLS.
    """
    published = [port for port in map(parse_port, ports) if port.protocol == "tcp"]
    if published and not (settings.GPUSHARE_TLS or settings.GPUSHARE_PORTS_WITHOUT_TLS):
        raise Problem(
            "ports_need_tls",
            f"Port {published[0].host} cannot be published: the dashboard is served without TLS, and a browser that "
            "opens the port would send it the session of the dashboard. An admin puts TLS in front (GPUSHARE_TLS=1, "
            "docs/production.md), or accepts this risk with GPUSHARE_PORTS_WITHOUT_TLS=1, and restarts the web side.",
            400,
            "ports",
        )


@dataclass(frozen=True, slots=True)
class Port:
    """`inside` is the container's port, `host` that of the host where it is published, `protocol` tcp or udp."""

    host: int
    inside: int
    protocol: str

    def __str__(self) -> str:
        return f"{self.host}:{self.inside}/{self.protocol}"


def parse_port(text: str) -> Port:
    """`HOST:CONTAINER[/tcp|udp]`. Raises Problem."""
    match = _PORT.fullmatch(text)
    if match is None:
        raise invalid('A port is "host:container", such as "20080:80" or "20053:53/udp".', "ports")
    port = Port(int(match[1]), int(match[2]), match[3] or "tcp")
    if not 1 <= port.inside <= 65535:
        raise invalid("A port inside the container is 1 to 65535.", "ports")
    return port


def check_port(text: str) -> str:
    """A port that may be published, in one normal form, with the protocol always there."""
    try:
        port = parse_port(text)
    except Problem as problem:
        raise serializers.ValidationError(problem.message, code=problem.code) from None
    lowest, highest = settings.GPUSHARE_PORTS
    if not lowest <= port.host <= highest:
        raise serializers.ValidationError(
            f"Port {port.host} may not be published: only {lowest} to {highest}.", code="forbidden"
        )
    return str(port)

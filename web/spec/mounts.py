"""What a launch may mount and publish: named volumes, folders under the allowed roots, ports in the allowed range."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from django.conf import settings
from rest_framework import serializers

from web.errors import Problem

_NAMED = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,62}")
_PORT = re.compile(r"(\d{1,5}):(\d{1,5})(?:/(tcp|udp))?", re.ASCII)

# Mounting over these would hide the kernel, the devices or the library that keeps the quota.
_RESERVED = ("/proc", "/sys", "/dev", "/run/gpushare", "/etc/ld.so.preload", "/usr/lib", "/lib", "/lib64")


def check_volume(text: str) -> str:
    """`SOURCE:TARGET[:ro|rw]` in one normal form, with the mode always there."""
    parts = text.split(":")
    if len(parts) == 2:
        parts.append("rw")
    if len(parts) != 3 or not parts[0] or parts[2] not in ("ro", "rw"):
        raise serializers.ValidationError('A volume is "source:target", with ":ro" behind it to mount it read-only.')
    source, target, mode = parts
    if not target.startswith("/") or posixpath.normpath(target) in ("/", "//"):
        raise serializers.ValidationError("The target of a volume is a folder inside the container, such as /data.")
    target = "/" + posixpath.normpath(target).lstrip("/")
    if any(_is_under(target, path) for path in _RESERVED):
        raise serializers.ValidationError(f"Nothing may be mounted at {target}.", code="forbidden")
    if source.startswith("/"):
        source = "/" + posixpath.normpath(source).lstrip("/")
    elif not _NAMED.fullmatch(source):
        raise serializers.ValidationError("The source of a volume is a name, or a folder by its full path.")
    return f"{source}:{target}:{mode}"


def require_roots(username: str, volumes: Iterable[str]) -> None:
    """Refuses a host folder outside the allowed roots. `{user}` in a root stands for whoever launches.

    Whether a folder leads out of its root by a symbolic link can only be seen on the host: the engine looks again.
    """
    roots = [str(root).replace("{user}", username) for root in settings.GPUSHARE_VOLUME_ROOTS]
    if username in (".", ".."):
        roots = []
    for volume in volumes:
        source = volume.split(":")[0]
        if source.startswith("/") and not any(_is_under(source, root) for root in roots):
            where = f"folders under {', '.join(roots)} and named volumes" if roots else "named volumes"
            raise Problem("forbidden", f"{source} may not be mounted: only {where}.", 400, "volumes")


def _is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def check_port(text: str) -> str:
    """`HOST:CONTAINER[/tcp|udp]` in one normal form, with the protocol always there."""
    match = _PORT.fullmatch(text)
    if match is None:
        raise serializers.ValidationError('A port is "host:container", such as "20080:80" or "20053:53/udp".')
    host, inside, protocol = int(match[1]), int(match[2]), match[3] or "tcp"
    if not 1 <= inside <= 65535:
        raise serializers.ValidationError("A port inside the container is 1 to 65535.")
    lowest, highest = settings.GPUSHARE_PORTS
    if not lowest <= host <= highest:
        raise serializers.ValidationError(
            f"Port {host} may not be published: only {lowest} to {highest}.", code="forbidden"
        )
    return f"{host}:{inside}/{protocol}"

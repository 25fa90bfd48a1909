"""Which proxy leads to an address: the one that the environment names (http_proxy, https_proxy, all_proxy, no_proxy).

None leads to this host itself: a proxy elsewhere cannot reach it. Part of the command line too, which has only httpx.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx


class BadProxy(Exception):
    """The environment names a proxy that cannot be used."""


def proxy_for(url: str) -> str | None:
    """The proxy's address; None: none is to be used, or `url` is no address."""
    from urllib.request import getproxies

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    proxies = getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    if not found or _is_this_host(host) or _is_excluded(host, port, proxies.get("no", "")):
        return None
    return found if "://" in found else f"http://{found}"


def transport(url: str, *, verify: bool = True) -> httpx.HTTPTransport:
    """How an `httpx.Client` gets to `url`, which is all that it may be used for. Raises BadProxy."""
    import httpx

    proxy = proxy_for(url)
    try:
        return httpx.HTTPTransport(verify=verify, proxy=proxy)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        if proxy is None:
            raise
        raise unusable(url, error) from None


def unusable(url: str, error: Exception) -> BadProxy:
    """Does not repeat the proxy's address, which may have a password in it."""
    why = str(error)
    if isinstance(error, ImportError):
        why = "a SOCKS proxy needs a Python package that is not installed here (socksio, python-socks)"
    host = urlsplit(url).hostname
    return BadProxy(
        f"the proxy that the environment names for {host} cannot be used: {why}. "
        f"Set http_proxy or https_proxy to one that speaks HTTP, or add {host} to no_proxy"
    )


def _is_this_host(host: str) -> bool:
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


def _is_excluded(host: str, port: int | None, entries: str) -> bool:
    """By `no_proxy`: names and what is below them, addresses (IPv6 with or without brackets), networks; "*" is all."""
    for entry in entries.lower().split(","):
        entry = entry.strip()
        if entry == "*":
            return True
        with suppress(ValueError):
            network = ipaddress.ip_network(entry.strip("[]"), strict=False)
            with suppress(ValueError):
                if ipaddress.ip_address(host) in network:
                    return True
            continue
        with suppress(ValueError):
            parts = urlsplit(f"//{entry.removeprefix('*')}")
            name = (parts.hostname or "").lstrip(".")
            if name and (host == name or host.endswith(f".{name}")) and parts.port in (None, port):
                return True
    return False

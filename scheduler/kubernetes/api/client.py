"""The API server of the cluster: JSON by HTTP, on the httpx that we have.

No client library: lightkube 1.0 brings an HTTP library of its own (httpx2, msgspec), `kubernetes` and
`kubernetes_asyncio` take 50 to 120 MB; and what a driver asks are six calls about three kinds of objects.
"""

import json
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from scheduler import clock

log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
RESOURCES = "/apis/resource.k8s.io/v1"
WITHIN = 10.0  # seconds for one call
SKEW = 60.0  # seconds by which a node's clock may be off before we speak of it
GONE = 410  # what was to be watched from there is too old: list anew

JSON = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class ApiError(Exception):
    """The API server said no. `str()` is for people."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ApiAway(ApiError):
    """It does not answer; the same call may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 503)


def path_of(group: str, *names: str) -> str:
    """Below this group of the API. ApiError for what is no name: some are read in objects that others have written."""
    if odd := [name for name in names if not _NAME.fullmatch(name)]:
        raise ApiError(f'"{odd[0][:64]}" is not the name of an object.', 404)
    return "/".join([group, *names])


class Api:
    """`url` is empty within a pod, where the environment says it. `account`: a folder with `token` and `ca.crt`."""

    def __init__(self, url: str = "", account: Path = ACCOUNT) -> None:
        self._account = account
        self._url = url or _of_the_pod()
        verify: ssl.SSLContext | bool = True
        if (authority := account / "ca.crt").exists():
            verify = ssl.create_default_context(cafile=str(authority))
        # No proxy of the environment's: it is not meant for the cluster's own API server.
        self._client = httpx.AsyncClient(base_url=self._url, timeout=WITHIN, verify=verify, trust_env=False)
        self.skew = 0.0  # seconds by which this node's clock is ahead of the API server's, as last seen

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> JSON:
        return await self._call("GET", path)

    async def find(self, path: str, **fields: str) -> tuple[list[JSON], str]:
        """The objects with these fields, and the version of the list, from which it can be watched."""
        selector = ",".join(f"{name}={value}" for name, value in fields.items())
        found = await self._call("GET", path, params={"fieldSelector": selector} if selector else {})
        return found.get("items") or [], found["metadata"]["resourceVersion"]

    async def create(self, path: str, body: JSON) -> JSON:
        return await self._call("POST", path, body=body)

    async def replace(self, path: str, body: JSON) -> JSON:
        """ApiError 409 if it is not any more what `body` was made from (its resourceVersion)."""
        return await self._call("PUT", path, body=body)

    async def delete(self, path: str, options: JSON | None = None) -> None:
        """What is not there is success. `options`: a DeleteOptions; ApiError 409 if its preconditions do not hold."""
        try:
            await self._call("DELETE", path, body=options)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(self, path: str, version: str, **fields: str) -> AsyncIterator[JSON]:
        """What happens from there on: `type` and `object`. Raises ApiError, with GONE if `version` is too old."""
        selector = ",".join(f"{name}={value}" for name, value in fields.items())
        params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "fieldSelector": selector}
        try:
            waits = httpx.Timeout(WITHIN, read=None)
            async with self._client.stream("GET", path, params=params, headers=self._headers(), timeout=waits) as reply:
                if reply.is_error:
                    await reply.aread()
                    raise _refused("GET", path, reply)
                async for line in reply.aiter_lines():
                    event: JSON = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(str(status.get("message")), int(status.get("code") or 500))
                    yield event
        except (httpx.HTTPError, ValueError) as error:
            raise self._away(error) from error

    async def _call(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: JSON | None = None
    ) -> JSON:
        try:
            reply = await self._client.request(method, path, params=params, json=body, headers=self._headers())
            self._compare_clocks(reply)
            if reply.is_error:
                raise _refused(method, path, reply)
            found: JSON = reply.json()
        except httpx.HTTPError as error:
            raise self._away(error) from error
        except (ValueError, RecursionError) as error:  # a claim's parameters are whatever its author likes
            raise ApiAway(f"What {self._url} answers to {method} {path} cannot be read: {error}.") from error
        if not isinstance(found, dict):
            raise ApiAway(f"What answers at {self._url} is not a Kubernetes API server.")
        return found

    def _headers(self) -> dict[str, str]:
        """The token is read anew: the kubelet replaces it before it runs out."""
        try:
            token = (self._account / "token").read_text().strip()
        except OSError:
            return {}
        return {"Authorization": f"Bearer {token}"}

    def _compare_clocks(self, reply: httpx.Response) -> None:
        try:
            skew = clock.wall() - parsedate_to_datetime(reply.headers["Date"]).timestamp()
        except (KeyError, ValueError):
            return
        if abs(skew) > SKEW and abs(self.skew) <= SKEW:
            log.warning(
                "This node's clock is %.0f s %s the API server's. Tokens and certificates may be refused for that: set "
                "the clock.", abs(skew), "ahead of" if skew > 0 else "behind",
            )  # fmt: skip
        self.skew = skew

    def _away(self, error: Exception) -> ApiAway:
        of_time = "not yet valid" in str(error) or "has expired" in str(error)
        clock = " A certificate that is not valid yet, or no more, can be this node's clock." * of_time
        return ApiAway(f"The API server ({self._url}) does not answer: {error or type(error).__name__}.{clock}")


def _of_the_pod() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ApiAway(
            "The address of the API server is not known. In a pod it is in KUBERNETES_SERVICE_HOST; elsewhere set "
            "GPUSHARE_KUBERNETES_API."
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _refused(method: str, path: str, reply: httpx.Response) -> ApiError:
    try:
        said = str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        said = reply.text[:200] or reply.reason_phrase
    hint = ""
    if reply.status_code == 401:
        hint = " It does not accept our token: is the service account there, and this node's clock right?"
    elif reply.status_code == 403:
        hint = " The role of our service account does not have this: apply the manifests of this release."
    return ApiError(
        f"The API server answers {method} {path} with {reply.status_code}: {said}.{hint}", reply.status_code
    )

"""An API server for tests: HTTP on a real socket, with what a driver has to cope with at a real one.

A token and rights by verb and resource; resourceVersions and conflicts; lists and watches by field, with 410 for what
is too old; fields that vanish where a feature gate is off; and the rules for ResourceSlices (rules.py). It can be away.
"""

import asyncio
import contextlib
import copy
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from tests.kubernetes.cluster.rules import JSON, SUBDOMAIN, Invalid, check_slice, kept
from tests.support.eventually import eventually

TOKEN = "a-token-of-the-service-account"
SLICES, CLAIMS, NODES, PODS, EVICTIONS = "resourceslices", "resourceclaims", "nodes", "pods", "pods/eviction"
GROUPS = {SLICES: "resource.k8s.io/v1", CLAIMS: "resource.k8s.io/v1", NODES: "v1", PODS: "v1", EVICTIONS: "policy/v1"}
KINDS = {SLICES: "ResourceSlice", CLAIMS: "ResourceClaim", NODES: "Node", PODS: "Pod", EVICTIONS: "Eviction"}
NAMESPACED = (CLAIMS, PODS, EVICTIONS)
FIELDS = {
    SLICES: ("metadata.name", "spec.nodeName", "spec.driver"), CLAIMS: ("metadata.name",), NODES: (),
    PODS: ("metadata.name", "spec.nodeName"),
}  # fmt: skip
# The least that the driver needs: what the manifests' role has to have.
RIGHTS = {
    SLICES: {"get", "list", "watch", "create", "update", "delete"},
    CLAIMS: {"get"},
    NODES: {"get"},
    PODS: {"get", "delete"},
}
EVICTING = RIGHTS | {PODS: {"get"}, EVICTIONS: {"create"}}  # where a kill is an eviction
Key = tuple[str, str, str]  # resource, namespace (or empty), name


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason,
            "code": code,
        }  # fmt: skip


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiServer:
    """`consumable`, `taints`: its feature gates. `calls`: what it was asked: verb, resource."""

    def __init__(self) -> None:
        self.objects: dict[Key, JSON] = {}
        self.consumable, self.taints = True, True
        self.token = TOKEN
        self.rights = RIGHTS
        self.calls: list[tuple[str, str]] = []
        self.log: list[tuple[int, str, Key, JSON]] = []
        self.budgets: set[tuple[str, str]] = set()  # namespace and name of pods that may not be evicted now
        self.date = ""  # what its clock shows; empty: the truth
        self.tls: tuple[str, str] | None = None  # files with its certificate and key
        self.texts: dict[str, str] = {}  # what stands for a text of an object, as it was written: JSON
        self.before: Any = None  # called with verb and resource before each answer
        self._version = 100
        self._oldest = 100  # from which on it can be watched
        self._generations: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._port = 0
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http{'s' * bool(self.tls)}://127.0.0.1:{self._port}"

    # ---- the test's side ----

    async def start(self) -> None:
        config = uvicorn.Config(self, host="127.0.0.1", port=self._port, lifespan="off", log_level="error",
                                date_header=False, timeout_graceful_shutdown=1,
                                ssl_certfile=self.tls and self.tls[0],
                                ssl_keyfile=self.tls and self.tls[1])  # fmt: skip
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        await eventually(lambda: self._server.started or self._serving.done())
        assert not self._serving.done()
        self._port = self._server.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Away, until it is started again: at the same address, with all that it had."""
        if self._server is not None and self._serving is not None:
            server, self._server = self._server, None
            server.should_exit = True
            async with self._changed:
                self._changed.notify_all()  # watches end
            await self._serving

    def compact(self) -> None:
        """What happened so far cannot be watched any more."""
        self._oldest = self._version

    async def put(self, resource: str, name: str, body: JSON, namespace: str = "") -> JSON:
        """As somebody else's write, past all rules."""
        key = (resource, namespace, name)
        old = self.objects.get(key)
        meta = {"name": name, "uid": str(uuid.uuid4())} | ({"namespace": namespace} if namespace else {})
        meta |= (old or {}).get("metadata", {}) | body.get("metadata", {})
        return await self._store("MODIFIED" if old else "ADDED", key, {**body, "metadata": meta})

    async def remove(self, resource: str, name: str, namespace: str = "") -> None:
        key = (resource, namespace, name)
        if key in self.objects:
            await self._forget(key)

    def all(self, resource: str) -> list[JSON]:
        return [copy.deepcopy(found) for (kind, _, _), found in self.objects.items() if kind == resource]

    # ---- HTTP ----

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        query = dict(pair.partition("=")[::2] for pair in scope["query_string"].decode().split("&") if pair)
        try:
            key, verb = self._route(scope["method"], scope["path"], query)
            self.calls.append((verb, key[0]))
            self._require_rights(headers, verb, key[0])
            if self.before is not None:
                await self.before(verb, key)
            if verb == "watch":
                await self._watch(key, query, send)
                return
            code, answer = await self._answer(verb, key, query, headers, body)
        except Refused as refused:
            code, answer = refused.status["code"], refused.status
        except Invalid as invalid:
            answer = Refused(422, "Invalid", str(invalid)).status
            code = 422
        head = [(b"content-type", b"application/json")] + [(b"date", self.date.encode())] * bool(self.date)
        await send({"type": "http.response.start", "status": code, "headers": head})
        text = json.dumps(answer)
        for word, said in self.texts.items():
            text = text.replace(f'"{word}"', said)
        await send({"type": "http.response.body", "body": text.encode()})

    def _route(self, method: str, path: str, query: JSON) -> tuple[Key, str]:
        parts = path.strip("/").split("/")
        group = "v1" if parts[:2] == ["api", "v1"] else "/".join(parts[1:3]) if parts[0] == "apis" else ""
        rest = parts[2:] if group == "v1" else parts[3:]
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if method == "POST" and rest[2:] == ["eviction"]:
            return (EVICTIONS, namespace, rest[1]), "create"
        if not rest or GROUPS.get(rest[0]) != group or len(rest) > 2:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        resource, name = rest[0], rest[1] if len(rest) == 2 else ""
        if (resource in NAMESPACED) != bool(namespace):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        verbs = {"GET": "get" if name else "watch" if query.get("watch") == "1" else "list", "POST": "create",
                 "PUT": "update", "DELETE": "delete"}  # fmt: skip
        return (resource, namespace, name), verbs[method]

    def _require_rights(self, headers: JSON, verb: str, resource: str) -> None:
        if headers.get("authorization") != f"Bearer {self.token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        if verb not in self.rights.get(resource, ()):
            raise Refused(403, "Forbidden", f"{resource} is forbidden: the service account cannot {verb} it")

    async def _answer(self, verb: str, key: Key, query: JSON, headers: JSON, body: bytes) -> tuple[int, JSON]:
        if verb == "list":
            items = [found for found in self.objects.values() if self._meant(key, found, query)]
            return 200, {
                "apiVersion": GROUPS[key[0]], "kind": f"{KINDS[key[0]]}List",
                "metadata": {"resourceVersion": str(self._version)}, "items": items,
            }  # fmt: skip
        if verb in ("create", "update"):
            if headers.get("content-type") != "application/json":
                raise Refused(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
            if key[0] == EVICTIONS:
                return await self._evict(key, json.loads(body))
            return await getattr(self, f"_{verb}")(key, self._read(key, body))
        if key not in self.objects:
            raise Refused(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        if verb == "delete":
            options = json.loads(body or b"{}")
            self._check_preconditions(key, options)
            if key[0] == PODS and options.get("gracePeriodSeconds") != 0:
                return 200, await self._mark(key, options.get("gracePeriodSeconds", 30))
            await self._forget(key)
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return 200, self.objects[key]

    # ---- pods that are to end ----

    def _check_preconditions(self, key: Key, options: JSON) -> None:
        if options and (options.get("apiVersion"), options.get("kind")) != ("v1", "DeleteOptions"):
            raise Refused(400, "BadRequest", "the body is no DeleteOptions of v1")
        meant, there = options.get("preconditions", {}).get("uid"), self.objects[key]["metadata"]["uid"]
        if meant and meant != there:
            raise Refused(409, "Conflict", f"the UID in the precondition ({meant}) does not match ({there})")

    async def _mark(self, key: Key, grace: int) -> JSON:
        """Its kubelet ends it and tells (`remove`). A shorter grace is taken, a longer one is not."""
        found = self.objects[key]
        grace = min(grace, found["metadata"].get("deletionGracePeriodSeconds", grace))
        marks = {"deletionGracePeriodSeconds": grace, "deletionTimestamp": "2026-11-23T00:00:00Z"}
        return await self._store("MODIFIED", key, {**found, "metadata": {**found["metadata"], **marks}})

    async def _evict(self, key: Key, found: JSON) -> tuple[int, JSON]:
        if (found.get("apiVersion"), found.get("kind")) != (GROUPS[EVICTIONS], KINDS[EVICTIONS]):
            raise Refused(400, "BadRequest", "the body is no Eviction of policy/v1")
        pod = (PODS, key[1], key[2])
        if (found["metadata"]["namespace"], found["metadata"]["name"]) != pod[1:]:
            raise Refused(400, "BadRequest", "the name of the object does not match the name on the URL")
        if pod not in self.objects:
            raise Refused(404, "NotFound", f'pods "{key[2]}" not found')
        if pod[1:] in self.budgets:
            raise Refused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **found.get("deleteOptions", {})}
        self._check_preconditions(pod, options)
        await self._mark(pod, options.get("gracePeriodSeconds", 30))
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _read(self, key: Key, body: bytes) -> JSON:
        found: JSON = json.loads(body)
        if (found.get("apiVersion"), found.get("kind")) != (GROUPS[key[0]], KINDS[key[0]]):
            raise Refused(400, "BadRequest", "the API version or kind in the data does not match the expected one")
        if unknown := found.keys() - {"apiVersion", "kind", "metadata", "spec"}:
            raise Refused(400, "BadRequest", f"strict decoding error: unknown field {unknown}")
        check_slice(found["spec"])
        return {**found, "spec": kept(found["spec"], consumable=self.consumable, taints=self.taints)}

    async def _create(self, key: Key, found: JSON) -> tuple[int, JSON]:
        meta = found["metadata"]
        if meta.get("resourceVersion"):
            raise Refused(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if not SUBDOMAIN.fullmatch(meta.get("name", "")):
            raise Invalid("metadata.name: must be a DNS subdomain")
        key = (key[0], key[1], meta["name"])
        if key in self.objects:
            raise Refused(409, "AlreadyExists", f'{key[0]} "{key[2]}" already exists')
        self._require_generation(found["spec"], None)
        self._check_owners(meta)
        return 201, await self._store("ADDED", key, {**found, "metadata": {**meta, "uid": str(uuid.uuid4())}})

    async def _update(self, key: Key, found: JSON) -> tuple[int, JSON]:
        if key not in self.objects:
            raise Refused(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        old, meta = self.objects[key], found["metadata"]
        if meta.get("name") != key[2]:
            raise Refused(400, "BadRequest", "the name of the object does not match the name on the URL")
        if not meta.get("resourceVersion"):
            raise Invalid("metadata.resourceVersion: must be specified for an update")
        if meta["resourceVersion"] != old["metadata"]["resourceVersion"] or meta.get("uid") != old["metadata"]["uid"]:
            raise Refused(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        for name in ("driver", "nodeName"):
            if found["spec"][name] != old["spec"][name]:
                raise Invalid(f"spec.{name}: field is immutable")
        if found["spec"]["pool"]["name"] != old["spec"]["pool"]["name"]:
            raise Invalid("spec.pool.name: field is immutable")
        self._check_owners(meta)
        if found == old:
            return 200, old
        self._require_generation(found["spec"], old["spec"])
        return 200, await self._store("MODIFIED", key, found)

    def _require_generation(self, spec: JSON, old: JSON | None) -> None:
        pool, generation = spec["pool"]["name"], spec["pool"]["generation"]
        if generation <= self._generations.get(pool, -1) and (old is None or spec["devices"] != old["devices"]):
            raise Invalid(f"spec.pool.generation: {generation} was there already, with other devices")
        self._generations[pool] = max(generation, self._generations.get(pool, -1))

    def _check_owners(self, meta: JSON) -> None:
        for owner in meta.get("ownerReferences", []):
            node = self.objects.get((NODES, "", owner["name"]))
            if owner["kind"] != "Node" or node is None or node["metadata"]["uid"] != owner["uid"]:
                raise Invalid("metadata.ownerReferences: there is no such node")

    async def _store(self, what: str, key: Key, found: JSON) -> JSON:
        self._version += 1
        found = copy.deepcopy(found)
        found |= {"apiVersion": GROUPS[key[0]], "kind": KINDS[key[0]]}
        found["metadata"] |= {"name": key[2], "resourceVersion": str(self._version)}
        self.objects[key] = found
        await self._tell(what, key, found)
        return found

    async def _forget(self, key: Key) -> None:
        self._version += 1
        found = self.objects.pop(key)
        if key[0] == SLICES:  # nobody remembers a pool of which there is nothing left
            self._generations.pop(found["spec"]["pool"]["name"], None)
        found["metadata"]["resourceVersion"] = str(self._version)
        await self._tell("DELETED", key, found)

    async def _tell(self, what: str, key: Key, found: JSON) -> None:
        async with self._changed:
            self.log.append((self._version, what, key, copy.deepcopy(found)))
            self._changed.notify_all()

    # ---- lists and watches ----

    def _meant(self, key: Key, found: JSON, query: JSON) -> bool:
        if found["kind"] != KINDS[key[0]] or (key[1] and found["metadata"].get("namespace") != key[1]):
            return False
        for pair in filter(None, query.get("fieldSelector", "").replace("%2C", ",").replace("%3D", "=").split(",")):
            field, _, value = pair.partition("=")
            if field not in FIELDS[key[0]]:
                raise Refused(400, "BadRequest", f"field label not supported: {field}")
            part, _, name = field.partition(".")
            if found[part].get(name) != value:
                return False
        return True

    async def _watch(self, key: Key, query: JSON, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        async for event in self._events(key, query):
            await send({"type": "http.response.body", "body": json.dumps(event).encode() + b"\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _events(self, key: Key, query: JSON) -> AsyncIterator[JSON]:
        since, server = int(query.get("resourceVersion", "0")), self._server
        if since < self._oldest:
            yield {"type": "ERROR", "object": Refused(410, "Expired", f"too old resource version: {since}").status}
            return
        if query.get("allowWatchBookmarks") == "true":
            meta = {"resourceVersion": str(self._version)}
            yield {"type": "BOOKMARK", "object": {"kind": KINDS[key[0]], "metadata": meta}}
        while self._server is server and server is not None and not server.should_exit:
            for version, what, (resource, _, _), found in list(self.log):
                if version > since and resource == key[0] and self._meant(key, found, query):
                    yield {"type": what, "object": found}
            since = self._version
            async with self._changed:
                if self._version == since and self._server is server:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), 0.5)

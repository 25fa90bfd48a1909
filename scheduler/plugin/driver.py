"""The calls of Docker's volume protocol, each answered in words for people where it is refused.

Docker asks again when it has had no answer, and it asks for the same volume from many sides at once: every call can be
repeated. What Docker has an answer for is in the database.

Docker that starts asks for each volume that its containers have, and answers nobody until it knows; and a scheduler
that starts waits for Docker. So what the database alone can answer is answered before there is an engine (`open`), and
only what needs the containers waits until all is taken over (`begin`).
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from django.db import DatabaseError

from scheduler.plugin.folders import Folders
from scheduler.plugin.mounts import Mounts
from scheduler.store import Store
from web.errors import Problem
from web.texts import fault_of

log = logging.getLogger(__name__)

ANSWERS_WITHIN = 50.0  # seconds; Docker gives up after 60, and says less
TAKES_OVER_WITHIN = 5.0  # seconds; half of what the engine has for a look, which may be held up by a call of this
NAMES = 1024  # characters of a name or an ID; Docker's have 64
NOT_YET = "The scheduler has not started yet. Try again shortly."


class VolumeDriver:
    def __init__(self, store: Store, folders: Folders) -> None:
        self._store, self._folders = store, folders
        self._volumes: dict[str, dict[str, str]] = {}  # name → options
        self._unanswered: set[str] = set()  # that the database may have, and Docker's answer was that it has not
        self._before: dict[str, str] = {}  # name → where it was mounted as an earlier scheduler ended
        self._begun: asyncio.Future[Mounts] = asyncio.get_running_loop().create_future()
        self._early: list[str] = []  # IDs of what was unmounted before that
        self._calls = {
            "Create": self._create, "Remove": self._remove, "Mount": self._mount, "Unmount": self._unmount,
            "Path": self._path, "Get": self._get, "List": self._list,
        }  # fmt: skip

    async def open(self) -> None:
        """Once, before the first call. Raises DatabaseError."""
        self._volumes = await self._store.volumes.all()
        for row in await self._store.volumes.mounted():
            if row.finished_at is None:
                self._before[row.volume] = str(self._folders.of(str(row.pk)))

    @property
    def has_volumes(self) -> bool:
        return bool(self._volumes)

    async def begin(self, mounts: Mounts) -> None:
        """All is taken over: calls that wait for that go on."""
        while self._early:
            await mounts.unmount(self._early.pop(0))
        if not self._begun.done():
            self._begun.set_result(mounts)

    async def call(self, name: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
        match name:
            case "Plugin.Activate":
                return {"Implements": ["VolumeDriver"]}
            case "VolumeDriver.Capabilities":
                return {"Capabilities": {"Scope": "local"}, "Err": ""}
        call = self._calls.get(name.removeprefix("VolumeDriver."))
        if call is None or not name.startswith("VolumeDriver."):
            return {"Err": f"There is no call {name[:64]!r}."}
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                return {**(await call(said) or {}), "Err": ""}
        except Problem as problem:
            return {"Err": f"gpushare: {problem.message}"}
        except DatabaseError as error:
            log.error("Docker's call %s: the database: %s", name, error)
            return {"Err": "gpushare: The database did not take this. Try again shortly."}
        except TimeoutError:  # before OSError: it is one
            return {"Err": "gpushare: The scheduler was not able to do this in time. Try again shortly."}
        except OSError as error:
            log.error("Docker's call %s: the host: %s", name, error)
            return {"Err": f"gpushare: The host does not let the scheduler do this now: {error.strerror or error}."}
        except Exception:
            log.exception("Docker's call %s", name)
            return {"Err": "gpushare: The scheduler failed at this; its log has details."}

    async def _mounts(self) -> Mounts:
        try:
            async with asyncio.timeout(TAKES_OVER_WITHIN):
                return await asyncio.shield(self._begun)
        except TimeoutError:
            raise Problem("starting", NOT_YET, 503) from None

    async def _create(self, said: Mapping[str, Any]) -> None:
        name, options = _text(said, "Name"), said.get("Opts") or {}
        if not isinstance(options, dict) or not all(isinstance(text, str) for text in options.values()):
            raise Problem("invalid", "Options are texts by name.", 400)
        if fault := fault_of([*options, *options.values()]):
            raise Problem("invalid", f"Options may not hold {fault}.", 400)
        if name in self._unanswered:  # Docker knows of none, so nobody could remove it first
            await self._store.volumes.remove(name)
        try:
            await self._store.volumes.make(name, options)
        except (DatabaseError, asyncio.CancelledError):
            if name not in self._volumes:
                self._unanswered.add(name)
            raise
        self._volumes[name] = options
        self._unanswered.discard(name)

    async def _remove(self, said: Mapping[str, Any]) -> None:
        name, mounts = _text(said, "Name"), await self._mounts()
        if user := mounts.user_of(name):
            raise Problem("in_use", f'The volume "{name}" is mounted by the container "{user}".', 409)
        await self._store.volumes.remove(name)
        self._volumes.pop(name, None)

    async def _mount(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        name, mount, mounts = self._known(said), _text(said, "ID"), await self._mounts()
        return {"Mountpoint": str(await mounts.mount(name, self._volumes[name], mount))}

    async def _unmount(self, said: Mapping[str, Any]) -> None:
        """At once, whatever is under way: until its answer, Docker shows nobody that container."""
        mount = _text(said, "ID")
        if self._begun.done():
            await self._begun.result().unmount(mount)
        else:
            self._early.append(mount)

    async def _path(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"Mountpoint": self._place(self._known(said))}

    async def _get(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"Volume": self._shown(self._known(said))}

    async def _list(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"Volumes": [self._shown(name) for name in self._volumes]}

    def _shown(self, name: str) -> Mapping[str, Any]:
        return {"Name": name, "Mountpoint": self._place(name), "Status": dict(self._volumes[name])}

    def _place(self, name: str) -> str:
        return self._begun.result().path(name) if self._begun.done() else self._before.get(name, "")

    def _known(self, said: Mapping[str, Any]) -> str:
        name = _text(said, "Name")
        if name not in self._volumes:
            raise Problem("unknown_volume", f'There is no volume "{name}" here.', 404)
        return name


def _text(said: Mapping[str, Any], field: str) -> str:
    value = said.get(field)
    if not isinstance(value, str) or not value or len(value) > NAMES or fault_of(value):
        raise Problem("invalid", f"{field} has to be a text of 1 to {NAMES} characters.", 400)
    return value

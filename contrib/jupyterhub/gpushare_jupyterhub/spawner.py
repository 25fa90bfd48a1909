"""The spawner: a notebook is a container of the appliance. It talks REST and nothing else.

It knows where the appliance is and who may launch for others, and what people may choose:

    c.GpushareSpawner.appliance_url = "http://127.0.0.1:8000"
    c.GpushareSpawner.appliance_token = …          # or GPUSHARE_TOKEN in the hub's environment
    c.GpushareSpawner.profiles = […]               # profiles.py
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.spawner import Spawner
from traitlets import Float, List, Unicode, default, validate

from gpushare_jupyterhub import profiles
from gpushare_jupyterhub.appliance import Appliance, Away, Refused, is_over, standing
from gpushare_jupyterhub.names import container_name

LOOK_EVERY = 1.0  # seconds
PORTS_TRIED = 5
AWAY_FOR = 120.0  # seconds a start outlasts an appliance that does not answer


class CannotStart(Exception):
    """JupyterHub shows `jupyterhub_message` on the page of the start, and escapes the rest."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.jupyterhub_message = message
        self.jupyterhub_html_message = f"<p>{escape(message)}</p>"


class GpushareSpawner(Spawner):
    appliance_url = Unicode(config=True, help="Where the appliance's dashboard is, such as http://127.0.0.1:8000.")
    appliance_token = Unicode(config=True, help="Of an account in the group launches-for-others.")
    profiles = List(config=True, help="What people may choose from; see gpushare_jupyterhub/profiles.py.")
    notebook_host = Unicode(config=True, help="Where this hub reaches the containers' ports; the appliance's host.")
    bind_address = Unicode("0.0.0.0", config=True, help="Where the server listens inside its container.")
    ports = Unicode("20000-29999", config=True, help="Of the appliance's host; its GPUSHARE_PORTS has to allow them.")
    grace = Float(10.0, config=True, help="Seconds from SIGTERM to SIGKILL when a notebook is stopped.")

    container = ""  # its id on the appliance
    _port = 0
    _status = "The GPU appliance is asked for a container."

    @default("appliance_url")
    def _default_url(self) -> str:
        return os.environ.get("GPUSHARE_URL", "http://127.0.0.1:8000")

    @default("appliance_token")
    def _default_token(self) -> str:
        return os.environ.get("GPUSHARE_TOKEN", "")

    @default("notebook_host")
    def _default_host(self) -> str:
        return urlsplit(self.appliance_url).hostname or "127.0.0.1"

    @default("start_timeout")
    def _default_start_timeout(self) -> int:
        return 3600  # a place in the queue is waited for

    @default("cmd")
    def _default_cmd(self) -> list[str]:
        return ["jupyterhub-singleuser"]

    @default("env_keep")
    def _default_env_keep(self) -> list[str]:
        return []  # a container has its image's own PATH, and nothing of this host

    @default("options_form")
    def _default_form(self) -> str:
        return profiles.form(self.profiles)

    @validate("profiles")
    def _check_profiles(self, proposal: Mapping[str, Any]) -> Any:
        return profiles.check(proposal["value"])

    def options_from_form(self, formdata: dict[str, list[str]]) -> dict[str, Any]:
        return profiles.options_of(self.profiles, formdata)

    # ---- what a restart of the hub must not lose ----

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        return {**state, "container": self.container} if self.container else state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.container = state.get("container", "")

    def clear_state(self) -> None:
        super().clear_state()
        self.container = ""

    # ---- its life ----

    async def start(self) -> tuple[str, int]:
        """Returns once the notebook's server listens, however long it is suspended. Raises CannotStart."""
        appliance = self._appliance()
        try:
            self.container = ""
            for _ in range(PORTS_TRIED):
                self._port = _free_port(self.ports)
                try:
                    self.container = await self._launch(appliance)
                    break
                except Refused as refused:
                    if refused.code not in ("port_taken", "name_taken"):
                        raise
                    if refused.code == "name_taken":
                        await self._end_earlier(appliance, refused)
            else:
                raise CannotStart("No free port was found for the notebook. Try again.")
            await self._until_it_listens(appliance)
        except profiles.BadChoice as error:
            raise CannotStart(str(error)) from None
        except Refused as refused:
            raise CannotStart(f"The GPU appliance refused this notebook: {refused}") from None
        except Away as error:
            raise CannotStart(str(error)) from None
        finally:
            await appliance.close()
        return self.notebook_host, self._port

    async def _launch(self, appliance: Appliance) -> str:
        """Returns the container's id."""
        published = await appliance.engine() == "docker"
        self.ip = self.bind_address
        self.port = self._port
        body = {
            **profiles.launch_of(self.profiles, self.user_options),
            "name": self._name(),
            "owner": self.user.name,
        }
        body["command"] = [*body.get("command", []), *self.cmd, *self.get_args()]
        body["env"] = {**body.get("env", {}), **self.get_env()}
        if published:
            body["ports"] = [f"{self._port}:{self._port}"]
        self._status = "The GPU appliance is asked for a container."
        answer = await appliance.launch(body, key=secrets.token_hex(16))
        while "state" not in answer:  # it fetches the image, for example
            command = await appliance.command(answer["command"])
            self._status = command["message"] or "The container is made."
            self.container = command["container"] or ""  # so that a stop finds it
            if command["outcome"] == "refused":
                raise Refused(command["message"], command["code"], command["status"] or 409)
            if command["done"]:
                return str(command["container"])
            await asyncio.sleep(LOOK_EVERY)
        return str(answer["id"])

    async def _end_earlier(self, appliance: Appliance, refused: Refused) -> None:
        """A hub that was killed over a start has left one of this name, and its key to this hub is void."""
        earlier = await appliance.named(self._name())
        if earlier is None:
            return
        if earlier["owner"] != self.user.name:
            raise refused
        await appliance.end(earlier["id"])

    async def _until_it_listens(self, appliance: Appliance) -> None:
        away = 0.0
        while not await _listens(self.notebook_host, self._port):
            try:
                container = await appliance.container(self.container)
                away = 0.0
            except Away as error:
                self._status, away = str(error), away + LOOK_EVERY
                if away > AWAY_FOR:
                    raise
            else:
                self._status = standing(container)
                if is_over(container):
                    raise CannotStart(await self._why(appliance, container))
            await asyncio.sleep(LOOK_EVERY)
        self._status = "The notebook server answers."

    async def _why(self, appliance: Appliance, container: Mapping[str, Any]) -> str:
        said = container["reason"] or f"its exit code is {container['exit_code']}"
        self.log.warning("%s has ended: %s\n%s", self._log_name, said, await appliance.output(self.container))
        await appliance.end(self.container)
        return f"The notebook ended before it had started: {said}. Its last words are in the hub's log."

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """What is new, as it comes."""
        said, step = "", 0
        while True:
            if self._status != said:
                said, step = self._status, step + 1
                yield {"progress": 100 - 90 // step, "message": said}
            await asyncio.sleep(LOOK_EVERY / 2)

    async def stop(self, now: bool = False) -> None:
        if not self.container:
            return
        appliance = self._appliance()
        try:
            await appliance.end(self.container, grace=0.0 if now else self.grace)
        finally:
            await appliance.close()

    async def poll(self) -> int | None:
        """None while it lives, or while nobody can tell: a notebook is not given up because the appliance is away."""
        if not self.container:
            return 0
        appliance = self._appliance()
        try:
            container = await appliance.container(self.container)
        except Away as error:
            self.log.warning("%s: %s", self._log_name, error)
            return None
        except Refused as refused:
            if refused.status == 404:
                return 1
            self.log.error("%s: the appliance does not tell how it is: %s", self._log_name, refused)
            return None
        finally:
            await appliance.close()
        return (container["exit_code"] if container["exit_code"] is not None else 1) if is_over(container) else None

    def _appliance(self) -> Appliance:
        return Appliance(self.appliance_url, self.appliance_token)

    def _name(self) -> str:
        return container_name(self.user.name, self.name)


def _free_port(ports: str) -> int:
    """One of "FIRST-LAST" that nobody on this machine has; whether the appliance's has it, the launch says."""
    first, _, last = ports.partition("-")
    while True:
        port = random.randint(int(first), int(last))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port


async def _listens(host: str, port: int) -> bool:
    """Whether somebody answers there. Docker's own proxy takes connections for a server that is not there yet, and
    closes them."""
    try:
        async with asyncio.timeout(LOOK_EVERY):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                return bool(await reader.read(1))
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False

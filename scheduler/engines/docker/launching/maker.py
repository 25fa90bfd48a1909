"""Makes a container of a launch, and starts it. All of it blocks, and leaves nothing behind when it fails."""

import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import docker.errors

from scheduler import clock
from scheduler.engines.base import EngineAway, EngineError, Launch
from scheduler.engines.docker import options
from scheduler.engines.docker.attach import Unasked, attach
from scheduler.engines.docker.client import Client
from scheduler.engines.docker.gpu_access import Access
from scheduler.engines.docker.image_files import Preloads, Programs
from scheduler.engines.docker.images import Image, Images
from scheduler.engines.docker.launching import folders

MADE_WITHIN, MADE_LOOK = 5.0, 0.1  # seconds for what has a launch's name to be there, or gone, and between looks
GOING = ("dead", "removing")


@dataclass(kw_only=True)
class Maker:
    """`places`: where folders of the host are mounted for containers; they come from below `roots`.

    `has_begun` is called after each start.
    """

    client: Client
    images: Images
    preloads: Preloads
    programs: Programs
    access: Access
    given: options.Given
    limits: options.DefaultLimits
    places: Path
    roots: tuple[Path, ...]
    attached: Unasked
    has_begun: Callable[[], None]

    def make(self, launch: Launch, turn: threading.Lock) -> str:
        """Its id; empty if its image is not there. Whoever has `turn` first decides whether it is made."""
        image = self.images.find(launch.image)
        if image is None:
            return ""
        if not turn.acquire(blocking=False):
            raise EngineError("It was cancelled before it was created.")
        volumes = options.volumes(launch)
        sources = [volume.source for volume in volumes if volume.source.startswith("/")]
        find = partial(folders.find, roots=self.roots, owner=launch.owner)
        with folders.held(self.places, launch.id, sources, find) as places:
            body = options.create_body(
                launch,
                given=replace(self.given, preload=self.preloads.file_for(image.id)),
                limits=self.limits,
                additions=self.access.additions(launch.gpus),
                image=image,
                places=places,
            )
            self._take_volumes(launch, [volume.source for volume in volumes if volume.source not in sources])
            return self._start(launch, body, image)

    def _start(self, launch: Launch, body: dict[str, Any], image: Image) -> str:
        engine_id, has_begun = self._create(launch, body)
        if has_begun:
            return engine_id
        api = self.client.api
        try:
            self._require_program(engine_id, launch, image)
            if launch.interactive or launch.tty:
                self.attached[engine_id] = attach(
                    self.client, engine_id, interactive=launch.interactive, tty=launch.tty
                )
            api.start(engine_id)
        except BaseException as error:
            self.attached.let_go(engine_id)
            if isinstance(error, (docker.errors.APIError, EngineError)):
                self._take_away(engine_id)
            raise
        self.has_begun()
        return engine_id

    def _require_program(self, engine_id: str, launch: Launch, image: Image) -> None:
        environment = dict(entry.partition("=")[::2] for entry in image.environment) | dict(launch.environment)
        self.programs.require(
            engine_id,
            image.runs(launch.command),
            path=environment.get("PATH"),
            folder=launch.working_dir or image.working_dir,
            known_by=(image.id, *launch.volumes),
        )

    def _create(self, launch: Launch, body: dict[str, Any]) -> tuple[str, bool]:
        """Its id, and whether it has begun: a scheduler that was killed may have got as far with this very launch.

        What that one had asked for Docker may be making still: it has the name then, and is not listed yet.
        """
        name, deadline = options.container_name(launch), clock.monotonic() + MADE_WITHIN
        while True:
            try:
                made = self.client.api.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
                return str(made["Id"]), False
            except docker.errors.APIError as error:
                if error.status_code != 409:
                    raise
                named = self.client.api.containers(all=True, filters={"name": f"^/{re.escape(name)}$"})
                if any((each["Labels"] or {}).get(options.LABEL) != launch.id for each in named):
                    raise
                for each in named:
                    if each["State"] not in GOING:
                        return str(each["Id"]), each["State"] != "created"
                if clock.monotonic() > deadline:
                    raise
            time.sleep(MADE_LOOK)

    def _take_away(self, engine_id: str) -> None:
        """What was not started. Raises EngineAway if that fails as well: nobody knows then that it does not run."""
        try:
            self.client.api.remove_container(engine_id, v=True, force=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            message = (
                "Docker could neither start nor remove it, so it may run for a while: it is ended as soon as Docker "
                f"can. Docker says: {error.explanation}"
            )
            raise EngineAway(message) from error

    def _take_volumes(self, launch: Launch, names: Iterable[str]) -> None:
        """Makes the named volumes that are not there yet; refuses those of others, this host's programs among them."""
        for name in names:
            # One that is there already is returned as it is.
            labels = self.client.api.create_volume(name, labels={options.LABEL_OWNER: launch.owner})["Labels"] or {}
            if labels.get(options.LABEL_OWNER) != launch.owner and options.LABEL_SHARED not in labels:
                message = (
                    f'The volume "{name}" is somebody else\'s: take another name. '
                    f"One that everybody may use carries the label {options.LABEL_SHARED}."
                )
                raise EngineError(message, code="forbidden", status=403, field="volumes")

"""What of a launch a local process can have; all else is refused by name, never ignored."""

import errno
import os

from scheduler.engines.asked import untaken
from scheduler.engines.base import EngineError, Launch

IMAGE = "local"  # the host's own file system
# Of a launch; also `init`, but not to go without it: a keeper reaps orphans in any case. All else is refused, what
# is to come as well: nothing that was asked for is silently left out.
TAKES = {"id", "name", "image", "command", "environment", "working_dir", "owner"}


def check_image(image: str) -> None:
    if image != IMAGE:
        raise EngineError(
            f"There is no image {image!r} here: without Docker, the only image is {IMAGE!r}, the host itself.",
            code="unknown_image",
            status=404,
            field="image",
        )


NOT_EXECUTABLE = tuple(os.strerror(number) for number in (errno.EACCES, errno.ENOEXEC, errno.EISDIR))


def cannot_start(why: str) -> EngineError:
    """`why`: the program, and what the kernel says of it."""
    code = "cannot_execute" if why.endswith(NOT_EXECUTABLE) else "cannot_start"
    return EngineError(f"Cannot start it: {why}.", code=code, status=400, field="command")


def check_fields(launch: Launch) -> None:
    if not launch.command:
        raise EngineError("Say what to run: the image 'local' has no command of its own.", status=400, field="command")
    if launch.working_dir and not (os.path.isdir(launch.working_dir) and os.access(launch.working_dir, os.X_OK)):
        message = f"There is no folder {launch.working_dir} on this host that it could begin in."
        raise EngineError(message, code="no_such_folder", status=400, field="working_dir")
    if field := untaken(launch, TAKES):
        raise EngineError(
            f"{field} {'need' if field.endswith('s') else 'needs'} the Docker engine; here containers are local "
            "processes.",
            code="not_supported",
            status=400,
            field=field,
        )

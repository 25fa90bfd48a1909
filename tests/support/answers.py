"""Commands answered as the scheduler would, where a page is tested without one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections
from django.utils import timezone

from web.models import Command

Answer = Callable[[Command], str]  # does it, and says what happened; raises Refusal


class Refusal(Exception):
    pass


def obey(command: Command) -> str:
    """Does to the rows what the scheduler does after the engine has."""
    container = command.container
    if container is None:
        return f"{command.kind} done."
    match command.kind:
        case Command.Kind.PAUSE:
            container.paused_at = timezone.now()
        case Command.Kind.RESUME:
            container.paused_at = None
        case Command.Kind.KILL:
            container.kill_requested_at = container.finished_at = timezone.now()
            container.claims.update(used=0, granted=0)
        case Command.Kind.REMOVE:
            container.removed_at = timezone.now()
        case Command.Kind.CHANGE:
            container.priority = command.arguments.get("priority", container.priority)
            if quota := command.arguments.get("gpu_memory"):
                container.claims.update(quota=quota)
    container.save()
    return f"{container.name}: {command.kind} done."


@contextmanager
def answering(answer: Answer) -> Iterator[list[str]]:
    """While inside, commands are taken in order and answered. Yields the kinds taken so far."""
    taken: list[str] = []
    stop = threading.Event()
    here = connections["default"]

    def work() -> None:
        alias = connections["default"]
        connections["default"] = mine = here.copy("default")
        try:
            while not stop.wait(0.02):
                for command in Command.objects.filter(done_at=None).select_related("container"):
                    taken.append(command.kind)
                    try:
                        command.message, command.outcome = answer(command), Command.Outcome.DONE
                    except Refusal as refusal:
                        command.message, command.outcome = str(refusal), Command.Outcome.REFUSED
                    command.done_at = timezone.now()
                    command.save(update_fields=["message", "outcome", "done_at"])
        finally:
            mine.close()
            connections["default"] = alias

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield taken
    finally:
        stop.set()
        thread.join()

"""A `manage.py` that is killed at a step of its own, or whose commits are not answered.

    python -m tests.support.dying STEP runscheduler

STEP is `MODULE:NAME:before` or `…:after`: at the first call of that function it kills itself, as `kill -9` does. With
`…:lost` the call is done, and then fails as if the connection had been cut before the answer came; once.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def _harm(call: Callable[..., Any], when: str) -> Callable[..., Any]:
    done: list[object] = []

    def harmed(*arguments: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments)
        if when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        if not done and arguments[1]:  # of a write: it had events
            done.append(...)
            from django.db import OperationalError

            raise OperationalError("server closed the connection unexpectedly")
        return result

    return harmed


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
    import django

    django.setup()
    module, path, when = sys.argv[1].split(":")
    owner: Any = import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    setattr(owner, name, _harm(getattr(owner, name), when))
    from django.core.management import execute_from_command_line

    execute_from_command_line(["manage.py", *sys.argv[2:]])


if __name__ == "__main__":
    main()

"""A second node of the same appliance: a scheduler with a GPUSHARE_HOME, a card and containers of its own.

Nobody kills it. What imports everything lives on over the rounds, so that it starts as quickly as the first.
"""

import contextlib
import shutil
from collections.abc import Iterator

from tests.faults.placing import SECOND
from tests.faults.world import World
from web.models import Gpu, Node


class Second(World):
    def __init__(self, first: World) -> None:
        home = first.home / SECOND
        home.mkdir(exist_ok=True)
        super().__init__(first.ground, home, GPUSHARE_HOME=str(home), GPUSHARE_NODE=SECOND)

    def renew(self) -> None:
        self._end_strangers()
        for path in self.home.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "scheduler.log":
                path.unlink()


@contextlib.contextmanager
def second(first: World) -> Iterator[World]:
    """It is up; afterwards it is not, and nothing that it ran."""
    if not first.others:
        first.others.append(Second(first))
    (made,) = first.others
    made.renew()
    made.start()
    try:
        made.until(_is_there, "the second node does not come up")
        yield made
    finally:
        made.stop()


def _is_there() -> bool:
    known = Node.objects.filter(name=SECOND).exclude(seen_at=None)
    return known.exists() and Gpu.objects.filter(node__name=SECOND).exists()

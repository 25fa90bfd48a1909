"""The play of quotas that no launch names: by an image's label (Docker), else by default. See plays.py.

A change that the core refuses is never in force, whenever the scheduler dies: the other one can always be completed.
"""

from tests.faults.ground import BY_LABEL
from tests.faults.plays import _BY_HAND
from tests.faults.scene import Scene
from tests.faults.world import GIB, MIB
from web.models import Claim
from web.spec.quotas import DEFAULT


class Unnamed(Scene):
    expected = {"small": (_BY_HAND,), "large": (_BY_HAND,)}

    def play(self) -> None:
        world = self.world
        hold = "exec {workload} --bytes %dMiB --check 1MiB --hold 600"
        self._launch("small", hold % 900, gpu_memory=None)
        self._says("small", "holding")
        self._launch("large", hold % 3600, gpu_memory=9 * GIB // 2)
        self._says("large", "holding")
        small = self.made["small"]
        self._refused(world.do("change", small, gpu_memory=3 * GIB))  # each would wait for what the other holds
        self._in_force(BY_LABEL if world.docker else DEFAULT)
        self._done(world.do("change", small, gpu_memory=970 * MIB))
        self._in_force(970 * MIB)
        for name in ("large", "small"):
            self._done(world.do("kill", self.made[name], grace=0.0))
        self._removed("large", "small")

    def _in_force(self, size: int) -> None:
        """By its row and its claim, once both are written."""
        small = self.made["small"]

        def written() -> bool:
            claim = Claim.objects.get(container=small)
            return (self.world.get(small).gpu_memory, claim.quota) == (size, size)

        self.world.until(written, f"the quota in force is not {size}")

"""A play of launches that begin later: a sweep of which two do not fit, a run that fails once, a sweep whose runs begin
one after the other, what is held while it waits for memory, and what never can."""

from datetime import datetime
from typing import Any

from django.contrib.auth.models import User

from scheduler import clock
from scheduler.core.planned.progress import Progress, as_json
from tests.faults.plays import _LIFE
from tests.faults.scene import Scene
from tests.faults.world import GIB, retried
from web.models import Container, Ended, Gpu, Node, Planned
from web.services.issuing import hint
from web.services.planning import HINT
from web.spec.planned import PlannedSpec
from web.spec.requests import FIELDS

_WELL = (("exited", (0,), "", _LIFE, 1),)


class Later(Scene):
    expected = {
        **{f"sweep-{run:04d}": _WELL for run in (1, 2, 3)},
        "once": (("failed", (3,), "", _LIFE, 1),),
        "once.2": (("failed", (3,), "", _LIFE, 1),),
        **{f"child-{run:04d}": _WELL for run in (1, 2)},
        "held": _WELL,
    }

    def play(self) -> None:
        cards = self.world.until(lambda: list(Gpu.objects.filter(capacity__gt=0)), "there is no card")
        large = min(card.capacity for card in cards) * 2 // 3
        sweep = self._plan("sweep", "exit 0", large, sweep=True, count=3, at_once=3)
        held = self._plan("held", "exit 0", large + (1 << 20))  # of another shape, so it stands in line, too
        self._steer(held, clock.now())
        once = self._plan("once", "exit 3", retries=1, retry_pause=0.1)
        after = [self._after(sweep, "ok"), self._after(once, "failed")]
        child = self._plan("child", "exit 0", sweep=True, count=2, at_once=1, after=after)
        never = self._plan("never", "exit 0", after=[self._after(once, "ok")])
        ends = {sweep: Ended.OK, once: Ended.FAILED, child: Ended.OK, never: Ended.NOT_STARTED}
        for planned, end in ends.items():
            self.world.until(lambda: Planned.objects.get(pk=planned.pk).ended, f"{planned} never ends")  # noqa: B023
            assert Planned.objects.get(pk=planned.pk).ended == end, planned
        self._steer(held, None)
        self.world.until(lambda: Planned.objects.get(pk=held.pk).ended, "what was held never ends")
        self.made = {each.name: each for each in Container.objects.exclude(planned=None)}
        assert set(self.made) == set(self.expected), "a run began twice, or never"
        for planned in (sweep, once, child):
            its = [each for each in self.made.values() if each.planned_id == planned.pk]
            beside = [sum(other.created_at <= each.created_at < other.finished_at for other in its) for each in its]
            assert max(beside) <= planned.at_once, f"{planned} has {max(beside)} at once"
        self._removed()

    def _plan(self, name: str, script: str, quota: int = GIB // 8, **fields: Any) -> Planned:
        """As the web side does, which refuses it where nobody gives a sign of life."""
        command = ["sh", "-c", f"echo began; {script}"]
        image = self.world.ground.image
        asked = PlannedSpec.parse({"image": image, "command": command, "gpu_memory": quota, "give_way": False})
        spec = {each: asked[each] for each in FIELDS}
        here = self.world.until(Node.objects.first, "there is no node")

        def write() -> Planned:
            owner, _ = User.objects.get_or_create(username="ada")
            return Planned.objects.create(
                name=name, owner=owner, node=here, spec=spec, quota=quota, progress=as_json(Progress()), **fields
            )

        planned = retried(write)
        hint(what=HINT)
        return planned

    def _steer(self, planned: Planned, held_at: datetime | None) -> None:
        retried(lambda: Planned.objects.open().filter(pk=planned.pk).update(held_at=held_at, unread=True))
        hint(what=HINT)

    def _after(self, parent: Planned, ended: str) -> dict[str, Any]:
        return {"id": str(parent.pk), "name": parent.name, "planned": True, "ended": ended}

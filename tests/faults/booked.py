"""A play of what is known ahead of time: a reservation moves a holder away and lets it back, one ends who cannot be
moved, and a window takes the card out of service."""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from tests.faults.plays import _BY_HAND, _KILLED, _NEVER, HOLD
from tests.faults.scene import Scene
from tests.faults.world import GIB, retried
from web.models import Announcement, Gpu, Reservation
from web.services.booked import announcements
from web.services.issuing import hint

POLITE_HOLD = "trap 'exit 143' TERM; {workload} --bytes 3GiB --check 1MiB --hold 600 & wait"


class Booked(Scene):
    expected = {
        "moved": (("killed", (137,), "Killed by", _KILLED, 1),),
        "mine": (_BY_HAND,),
        "refused": (_NEVER,),
        "stays": (("killed", (137, 143), "Its GPU memory is reserved", _KILLED, 1),),
    }

    def play(self) -> None:
        world = self.world
        self._launch("moved", HOLD, gpu_memory=4 * GIB, give_way=True, owner="bob")
        self._says("moved", "holding")
        world.card("sim_card_speed 0 0")  # to move memory takes no time
        short = self._reserve()
        moved = world.until_state(self.made["moved"], "swapped")
        self._launch("mine", HOLD, gpu_memory=4 * GIB)
        self._says("mine", "holding")
        self._window()
        self._launch("refused", "exit 0")
        gpu = Gpu.objects.get()
        self._done(world.do("undrain-gpu", gpu=gpu.uuid))
        self._done(world.do("kill", self.made["mine"], grace=0.0))
        self._end(short)
        world.until_state(moved, "running")
        self._done(world.do("kill", moved, grace=0.0))
        self._launch("stays", POLITE_HOLD, gpu_memory=4 * GIB, owner="bob")
        self._says("stays", "holding")
        ends = self._reserve(if_short="end")
        world.until_state(self.made["stays"], "killed")
        self._end(ends)
        self._removed()

    def _reserve(self, **fields: Any) -> Reservation:
        """All of the card for ada, from the minute that began last."""
        begins = timezone.now().replace(second=0, microsecond=0)

        def write() -> Reservation:
            ada, _ = User.objects.get_or_create(username="ada")
            over = {"minutes": 60, "over_at": begins + timedelta(minutes=60)}
            made = Reservation.objects.create(
                user=ada, starts=f"{begins:%Y-%m-%dT%H:%M}", zone="UTC", made_by="ada", **over, **fields
            )
            made.cards.create(gpu=Gpu.objects.get())
            return made

        made = retried(write)
        hint(what="reservations")
        return made

    def _end(self, reservation: Reservation) -> None:
        retried(lambda: Reservation.objects.filter(pk=reservation.pk).update(over_at=timezone.now()))
        hint(what="reservations")

    def _window(self) -> None:
        """It begins twice: whoever looks a second time begins nothing."""
        now, hour = timezone.now(), timedelta(hours=1)
        retried(lambda: Announcement.objects.create(message="fans", gpu=Gpu.objects.get(), made_by="ada",
                                                    begins_at=now, ends_at=now + hour))  # fmt: skip
        for _ in range(2):
            retried(lambda: announcements.begin_due(now + timedelta(seconds=1)))
        self.world.until(lambda: Gpu.objects.get().drained_at, "the window does not take the card out of service")

"""Words that a container's record can have in one of its fields."""

from django.db import models


class Shortage(models.TextChoices):
    WAIT = "wait"
    FAIL = "fail"


class Swap(models.TextChoices):
    """Written before each step: what a scheduler that takes over has to bring to its end. Empty: nothing is swapped."""

    LEAVING = "leaving"  # its processes are being stopped, and their memory goes to the host's
    OUT = "out"
    COMING = "coming"  # there is room for it again, and it is being brought back


class GaveWay(models.TextChoices):
    IDLE = "idle"  # it computed nothing
    SHARE = "share"  # its owner had more of the card than is due
    ROTATE = "rotate"  # it had its time
    BOOKED = "booked"  # a reservation has begun, or is about to

    @property
    def opening(self) -> str:
        """How the detail of such a swap begins; where a person has asked for it, another word stands there."""
        was = {
            GaveWay.IDLE: "It was idle",
            GaveWay.SHARE: "It was above its owner's fair share",
            GaveWay.BOOKED: "Its memory was reserved",
        }
        return f"{was.get(self, 'It had used its time')}, and gave way to"


class ExpectedBy(models.TextChoices):
    """What the time rests on by which somebody who waits is expected to go on."""

    LIMITS = "limits"  # time limits end others by then: at the latest
    EARLIER_RUNS = "earlier runs"  # how long the same jobs took before: a guess

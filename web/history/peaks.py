"""Right-sizing: what runs really took, and the quota that would have been enough for the next one like them.

Only a run that ended by itself, with exit code 0, has shown what it needs. What lives has not yet; what was killed
(by a person, or because its time was over) was cut off before it had; so was what failed, be it at its first line or
by its host-memory limit. A run that was refused memory (rejected, or the card was full) wanted more than it got, even
if it then made do: it is counted apart, and its peak says nothing. What held memory past the shim is not counted at
all, for its peak is not all that it held.

Runs are alike that had the same image and the same command, whoever launched them. Where there are too few, those of
one person's with the same image are the next best. What others do with an image says nothing about the reader's work.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet

from web.models import AllocationEvent, Container, State
from web.people.roles import Deed, rights_of

_STEP = 64 * 2**20
_MARGIN = 0.05  # fragmentation and the noise between runs

# The same command again takes the same but for noise: a second run confirms the first.
ENOUGH_OF_A_COMMAND = 2
# Different commands of one person: if they come in any order, the next takes more than each of n before it in one of
# n + 1 cases (it is as likely as any other to be the largest); three make that one in four at the most.
ENOUGH_OF_A_PERSON = 3

EventKind = AllocationEvent.Kind


@dataclass(frozen=True, slots=True)
class Peak:
    """What runs of an image took: those of a `command`, or (`command` is None) those of `owner`, whatever they ran.

    `runs` have shown what they need, the last of them at `last`; `peak` is the most that any of them held on one GPU,
    contexts included, in bytes. `rejected_runs` wanted more than they got and do not count. `suggestion` is a quota
    in bytes; None where the runs are too few to tell.
    """

    image: str
    command: list[str] | None
    owner: str | None
    runs: int
    rejected_runs: int
    peak: int | None
    last: datetime | None

    @property
    def suggestion(self) -> int | None:
        enough = ENOUGH_OF_A_PERSON if self.command is None else ENOUGH_OF_A_COMMAND
        return suggest(self.peak) if self.peak is not None and self.runs >= enough else None


def peaks(reader: User, image: str = "", command: list[str] | None = None) -> list[Peak]:
    """Runs by command, the most run first; then the reader's own by image.

    Without `command`, only of commands that the reader may know: their own; everybody's for who may steer them all.
    With it, the reader's own by image are given only where those of the command are too few.
    """
    runs = _runs().filter(image=image) if image else _runs()
    if command is None:
        return [*_by_command(reader, runs), *_by_owner(reader, runs)]
    found = _alike(runs.filter(command=command))
    return found if any(each.suggestion for each in found) else [*found, *_by_owner(reader, runs)]


def best(reader: User, image: str, command: list[str]) -> Peak | None:
    """What a quota for this launch can be estimated from, if from anything."""
    return next((found for found in peaks(reader, image, command) if found.suggestion is not None), None)


def suggest(peak: int) -> int:
    """A quota for this peak: 5 % more, rounded up to 64 MiB."""
    return -(-int(peak * (1 + _MARGIN)) // _STEP) * _STEP


def _runs() -> QuerySet[Container]:
    """Those that ended by themselves and had memory, with whether they were refused any."""
    events = AllocationEvent.objects.filter(container=OuterRef("pk"))
    refused = Exists(events.filter(kind__in=(EventKind.REJECTED, EventKind.CARD_FULL)))
    past_the_shim = Exists(events.filter(kind=EventKind.BYPASS))
    ended = Container.objects.in_state(State.EXITED).filter(claims__peak__gt=0)
    return ended.filter(~past_the_shim).annotate(refused=refused).order_by()


def _by_command(reader: User, runs: QuerySet[Container]) -> list[Peak]:
    found = _alike(runs)
    if rights_of(reader).may(Deed.STEER_ALL):
        return found
    own = {(image, tuple(words)) for image, words in runs.filter(owner=reader).values_list("image", "command")}
    return [each for each in found if (each.image, tuple(each.command or ())) in own]


def _alike(runs: QuerySet[Container]) -> list[Peak]:
    return [Peak(owner=None, **row) for row in _measured(runs, "image", "command")]


def _by_owner(reader: User, runs: QuerySet[Container]) -> list[Peak]:
    found = _measured(runs.filter(owner=reader), "image")
    return [Peak(command=None, owner=reader.get_username(), **row) for row in found]


def _measured(runs: QuerySet[Container], *alike: str) -> list[dict[str, Any]]:
    shown, refused = Q(refused=False), Q(refused=True)
    rows = runs.values(*alike).annotate(
        runs=Count("pk", filter=shown, distinct=True),
        rejected_runs=Count("pk", filter=refused, distinct=True),
        peak=Max("claims__peak", filter=shown),
        last=Max("finished_at", filter=shown),
    )
    return list(rows.order_by("-runs", "image"))

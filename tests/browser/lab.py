"""Seventy containers of eight people, thirty of them waiting, after a night in which things broke; and what is to come.

What a newcomer is shown where it is asked whether each page answers its question: tests/browser/test_ten_tasks.py, and

    python -m tests.browser.screens --lab OUT [NAME …]
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.contrib.auth.models import Group
from django.utils import timezone

from tests.browser import full, scenes
from tests.support import rows
from tests.support.planned import plan
from tests.support.site import person
from web import audit
from web.models import (
    AllocationEvent,
    Claim,
    Container,
    Episode,
    Gpu,
    Preset,
    Usage,
    UsageHour,
)
from web.people import memberships
from web.services.booked import announcements, reservations

GIB = rows.GIB
EventKind = AllocationEvent.Kind
# Who, with how many that hold and how many that wait. greta is away, and her paused runs hold the most.
PEOPLE = (
    ("greta", 9, 0), ("ann", 5, 6), ("bob", 6, 4), ("chen", 4, 5), ("dora", 5, 4), ("emil", 4, 4), ("farid", 4, 4),
    ("hanna", 3, 3),
)  # fmt: skip
TRACEBACK = """epoch 17: loss 0.3121
Traceback (most recent call last):
  File "train.py", line 214, in <module>
    main()
  File "train.py", line 131, in step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


@dataclass
class Lab:
    cards: list[Gpu]
    holders: list[Container]
    waiters: list[Container]
    failed: Container

    def of(self, name: str) -> list[Container]:
        return [each for each in self.holders + self.waiters if each.owner.username == name]


def a_lab(logs: Path) -> Lab:
    """Written as the scheduler and admins would, with the output of containers below `logs`."""
    cards = [rows.gpu(index, 80 * GIB, name="NVIDIA H100 80GB") for index in (0, 1)]
    holders, waiters = _live(cards)
    made = Lab(cards, holders, waiters, _night(cards, holders, logs))
    for card in cards:
        scenes.an_hour_of(card)
    scenes.a_life(holders[-1], cards[len(holders) % 2 - 1])
    scenes.a_day(cards[0], [person(name) for name, *_ in PEOPLE], 16, every=5)
    full.past(cards, holders)
    _week(cards)
    _ahead(cards)
    return made


def _live(cards: list[Gpu]) -> tuple[list[Container], list[Container]]:
    holders, waiters = [], []
    for mark, (name, holding, _) in enumerate(PEOPLE):
        owner = person(name)
        for number in range(holding):
            away = {"paused_at": rows.ago(9 * 3600)} if name == "greta" and number < 3 else {}
            size = 9 if away else 2.2 + 0.3 * (number % 4)
            made = rows.container(f"{name}-train-{number + 1}", owner, cards[len(holders) % 2], quota=size + 1,
                                  used=size, granted=size + 0.1, peak=size, colour=mark, cpus_used=1.4,
                                  memory_used=3 * GIB, image="pytorch/pytorch:2.4", **away)  # fmt: skip
            age = 3600 * 10 + 600 * number
            Container.objects.filter(pk=made.pk).update(created_at=rows.ago(age), started_at=rows.ago(age - 4))
            holders.append(made)
    Container.objects.filter(pk=holders[10].pk).update(idle_since=rows.ago(5400))
    Claim.objects.filter(container__in=holders).update(utilisation=6, had_lately=3.6)
    for mark, (name, _, waiting) in enumerate(PEOPLE):
        for number in range(waiting):
            place = len(waiters) + 1
            holder = holders[place % 3]
            made = rows.container(f"{name}-sweep-{number + 1}", person(name), cards[place % 2], quota=6, colour=mark,
                                  suspended_since=rows.ago(4200 - 120 * place), queue_position=place,
                                  queue_reason=f"Needs 6 GiB; 1.9 GiB is free. Next when {holder.name} ends.",
                                  image="pytorch/pytorch:2.4")  # fmt: skip
            Container.objects.filter(pk=made.pk).update(created_at=rows.ago(4400), started_at=rows.ago(4390))
            waiters.append(made)
    return holders, waiters


def _night(cards: list[Gpu], holders: list[Container], logs: Path) -> Container:
    """Two failed, one was killed, others waited; a card reported an error and is out of service since."""
    at = timezone.now() - timedelta(hours=7)
    ended = []
    for number, (name, owner, fields) in enumerate((
        ("ann-finetune", "ann", {"exit_code": 1}),
        ("dora-eval", "dora", {"exit_code": 137, "reason": "Ended by the kernel: more than 32 GiB of RAM."}),
        ("bob-notebook", "bob", {"exit_code": 143, "kill_requested_at": at + timedelta(minutes=60),
                                 "reason": "Killed by boss: the owner asked for it."}),
        ("chen-report", "chen", {"exit_code": 0}),
    )):  # fmt: skip
        end = at + timedelta(minutes=20 * number)
        made = rows.container(name, person(owner), cards[number % 2], quota=4, colour=number + 11,
                              image="pytorch/pytorch:2.4", finished_at=end, **fields)  # fmt: skip
        Container.objects.filter(pk=made.pk).update(
            created_at=end - timedelta(hours=3), started_at=end - timedelta(hours=3), command=["python", "train.py"]
        )
        logs.mkdir(exist_ok=True)
        (logs / f"{made.pk}.log").write_text(TRACEBACK)
        ended.append(made)
    one = holders[12]
    story = (
        (one, EventKind.SUSPENDED, at, 0.0, ""),
        (one, EventKind.RESUMED, at + timedelta(minutes=34), 2040.0, ""),
        (holders[13], EventKind.SWAPPED_OUT, at + timedelta(minutes=50), 0.0, "Gave way to chen-report; took 1.1 s."),
        (holders[13], EventKind.SWAPPED_IN, at + timedelta(minutes=80), 0.0, "Took 0.9 s."),
    )
    audit.append(events=[
        AllocationEvent(at=when, kind=kind, container=who, gpu=cards[0], bytes=2 * GIB, waited=waited, detail=detail)
        for who, kind, when, waited, detail in story
    ])  # fmt: skip
    text = f'GPU 1 reported XID 79: it has fallen off the bus. Restart the host. "{holders[1].name}" was on it.'
    Episode.objects.create(
        key="xid:1", kind="xid", gpu=cards[1].uuid, message=text, began_at=at, ended_at=at + timedelta(minutes=15)
    )
    Episode.objects.create(
        key="scheduler_away", kind="scheduler_away", message="The scheduler does not answer.", began_at=at,
        ended_at=at + timedelta(minutes=1),
    )  # fmt: skip
    out = {"drained_at": at + timedelta(minutes=1), "drain_reason": "XID 79: it has fallen off the bus."}
    Gpu.objects.filter(pk=cards[1].pk).update(xid=79, xid_at=at, **out)
    return ended[0]


def _week(cards: list[Gpu]) -> None:
    this_hour = int(timezone.now().timestamp()) // 3600
    UsageHour.objects.bulk_create(
        UsageHour(gpu=cards[ago % 2], person=name, hour=this_hour - ago, had=8 * (1.4 - 0.1 * number), due=8.0)
        for number, (name, *_) in enumerate(PEOPLE)
        for ago in range(140)
        if ago % 24 not in (3, 4, 5, 6, 7)
    )
    for number, (name, *_) in enumerate(PEOPLE):
        Usage.objects.create(gpu=cards[0], person=name, at=timezone.now(), ratio=1.4 - 0.1 * number, share=20 * GIB)


def _ahead(cards: list[Gpu]) -> None:
    """Planned launches, a reservation of each kind, maintenance, a notice, presets, an invitation that is open."""
    boss, ann, vision = person("boss", "admin"), person("ann"), Group.objects.create(name="vision")
    vision.user_set.add(ann, person("bob"), person("chen"))
    plan(ann, "nightly-eval", gpu_memory="6GiB", place=1, waits="6 GiB of 80 GiB must be free on GPU 0; 1.9 GiB is.")
    plan(ann, "lr-sweep", gpu_memory="4GiB", place=2, sweep={"name": "lr", "values": ["0.1", "0.03", "0.01", "0.003"]},
         progress={"next": 3, "ok": 1, "failed": 0, "running": {}})  # fmt: skip
    plan(person("bob"), "after-the-eval", gpu_memory="4GiB", after=["nightly-eval"])
    plan(person("dora"), "held-back", gpu_memory="4GiB", hold=True)
    tomorrow = timezone.now().replace(minute=0, second=0, microsecond=0) + timedelta(days=1)
    day = f"{tomorrow:%Y-%m-%d}"
    Gpu.objects.filter(pk=cards[1].pk).update(drained_at=None)  # until then, or nothing can be reserved on it
    for who, whose, note, hours in ((ann, "", "paper deadline", 6), (boss, "vision", "course, weekly", 2)):
        asked = {"starts": f"{day}T{9 + 3 * len(whose) // 3:02}:00", "zone": "UTC", "minutes": 60 * hours,
                 "gpu_memory": "20GiB", "gpus": [cards[0].uuid], "note": note}  # fmt: skip
        if whose:
            asked |= {"group": whose, "repeat": "weekly", "times": 4}
        reservations.reserve(who, asked)
    Gpu.objects.filter(pk=cards[1].pk).update(drained_at=timezone.now() - timedelta(hours=7))
    window = {
        "begins_at": (tomorrow + timedelta(days=1)).isoformat(),
        "ends_at": (tomorrow + timedelta(days=1, hours=4)).isoformat(),
    }
    announcements.announce(boss, {"message": "New driver; save your work.", "then": "move", **window})
    announcements.announce(boss, {"message": "The course of computational linguistics begins on Monday."})
    for name, icon, text in (
        ("JupyterLab", "📓", "A notebook in the browser, with a GPU when a cell needs one."),
        ("VS Code", "✎", "An editor in the browser, with a terminal."),
        ("TensorBoard", "∿", "Shows the logs below your folder; needs no GPU memory."),
    ):
        spec = {"image": "local", "command": ["sleep", "3600"], "gpu_memory": "2GiB"}
        Preset.objects.update_or_create(
            name=name, defaults={"icon": icon, "text": text, "spec": spec, "changes": ["name", "gpu_memory"]}
        )
    memberships.invite(boss, {"username": "new.student@lab.example"}, {"gpu_memory": "4GiB"},
                       timezone.now() + timedelta(days=120))  # fmt: skip

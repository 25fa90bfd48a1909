"""What the pages are looked at with: a lab's day, written as the scheduler would."""

import random
from datetime import timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from tests.support import rows
from tests.support.site import person
from web import audit
from web.models import AllocationEvent, Claim, Container, Gpu, Usage, UsageHour, UsageSample

GIB = rows.GIB
EventKind = AllocationEvent.Kind


def a_busy_card() -> tuple[Gpu, dict[str, Container]]:
    """The paper's Figure 3 after C was suspended: A and B hold, C and D wait; somebody paused a shell."""
    card, ann, bob = rows.gpu(), person("ann"), person("bob")
    made = {
        "a": rows.container("train-7", ann, card, quota=2, used=1.9, granted=2, image="pytorch/pytorch:2.4"),
        "b": rows.container("notebook", bob, card, quota=2, used=1.6, peak=1.9, image="jupyter/datascience"),
        "c": rows.container("evaluate", ann, card, quota=2, used=0.6, image="pytorch/pytorch:2.4",
                            suspended_since=rows.ago(75), queue_position=1,
                            queue_reason="Needs 1.4 GiB; 717 MiB is free. Next when train-7 ends."),
        "d": rows.container("sweep-12", bob, card, quota=1.5, suspended_since=rows.ago(12), queue_position=2,
                            image="pytorch/pytorch:2.4", queue_reason="Needs 1.5 GiB; 717 MiB is free."),
        "e": rows.container("idle-shell", bob, card, quota=0.5, used=0.1, paused_at=rows.ago(500)),
    }  # fmt: skip
    for number, container in enumerate(made.values()):
        Container.objects.filter(pk=container.pk).update(created_at=rows.ago(4000 - 600 * number))
    return card, made


def a_card_in_turns() -> tuple[Gpu, dict[str, Container]]:
    """The busy card, in turns: train-7 has three quarters of it, and the notebook a quarter."""
    card, made = a_busy_card()
    Gpu.objects.update(compute="turns", compute_why="The driver can stop programs.")
    life = {"had": 905.0, "due": 890.0, "held_back": 301.0}
    rested = {"had_lately": 0.0, "due_lately": 0.0, "held_back_lately": 0.0}
    Claim.objects.filter(container=made["c"]).update(had=212.0, due=214.5, held_back=97.0, **rested)
    Claim.objects.filter(container=made["a"]).update(had_lately=45.0, due_lately=44.4, held_back_lately=15.0, **life)
    Claim.objects.filter(container=made["b"]).update(had_lately=15.0, due_lately=15.6, held_back_lately=44.7)
    for name, busy, processors, memory in (("a", 74, 5.2, 11.5), ("b", 24, 1.4, 3.1), ("c", 0, 0.0, 2.6)):
        Claim.objects.filter(container=made[name]).update(utilisation=busy)
        Container.objects.filter(pk=made[name].pk).update(cpus_used=processors, memory_used=int(memory * GIB))
    return card, made


def an_hour_of(card: Gpu) -> None:
    """The whole card, each 10 seconds."""
    dice = random.Random(7)
    level = 2.0
    samples = []
    for second in range(3600, 0, -10):
        level = min(4.8, max(0.5, level + dice.uniform(-0.35, 0.37)))
        samples.append(UsageSample(at=rows.ago(second), gpu=card, used=int(level * GIB), peak=int(level * GIB),
                                   utilisation=min(100, max(0, 20 * level + dice.uniform(-25, 25)))))  # fmt: skip
    UsageSample.objects.bulk_create(samples)


def a_life(container: Container, card: Gpu) -> None:
    """Started, granted, suspended, resumed, rejected once, paused, goes on: and its samples."""
    Container.objects.filter(pk=container.pk).update(created_at=rows.ago(905), started_at=rows.ago(900))
    story = [
        (900, EventKind.STARTED, 0, None, 0, ""),
        (895, EventKind.ACCEPTED, 0.6, 0.6, 0, ""),
        (700, EventKind.SUSPENDED, 1.4, 0.6, 0, "Needs 1.4 GiB; 717 MiB is free."),
        (520, EventKind.RESUMED, 1.4, 2.0, 180, ""),
        (400, EventKind.REJECTED, 1.0, 2.0, 0, "would pass the quota of 2 GiB"),
        (300, EventKind.PAUSED, 0, None, 0, "by admin: lunch"),
        (200, EventKind.UNPAUSED, 0, None, 0, ""),
        (150, EventKind.FREED, 1.4, 0.6, 0, ""),
        (75, EventKind.SUSPENDED, 1.4, 0.6, 0, "Needs 1.4 GiB; 717 MiB is free. Next when train-7 ends."),
    ]
    audit.append(
        events=[
            AllocationEvent(
                at=rows.ago(age), kind=kind, container=container, gpu=card, pid=4711, bytes=int(size * GIB),
                used_after=None if after is None else int(after * GIB), waited=waited, policy="fair", detail=detail,
            )
            for age, kind, size, after, waited, detail in story
        ]
    )  # fmt: skip
    UsageSample.objects.bulk_create(
        UsageSample(at=rows.ago(age), gpu=card, container=container, used=int(held * GIB), peak=int(held * GIB),
                    granted=int(min(2.0, held * 1.2) * GIB), utilisation=55,
                    suspended=float(520 < age < 700 or age < 75))
        for age in range(895, 0, -1)
        for held in [2.0 if 150 < age <= 520 else 0.6]
    )  # fmt: skip
    held = int(0.6 * GIB)
    container.claims.update(used=held, granted=held, peak=2 * GIB,
                            processes=[{"pid": 4711, "used": held, "real": held, "uncapped": False}])  # fmt: skip


def a_day(card: Gpu, owners: list[User], containers: int, every: int = 1) -> list[Container]:
    """A day of a full card, one sample in so many minutes for each of so many containers; most live for hours."""
    dice = random.Random(3)
    now = timezone.now()
    end = now.replace(minute=now.minute // every * every, second=0, microsecond=0)
    share = card.total / max(4, containers) * 1.6
    made, samples = [], []
    for number in range(containers):
        first = dice.randrange(0, 1440 - 200) if containers < 50 else 0
        length = dice.randrange(120, 700) if containers < 50 else 1440
        start = end - timedelta(minutes=1440 - first)
        stop = min(1440, first + length)
        container = Container(
            name=f"job-{number}", exit_code=0 if number % 4 else 1, owner=owners[number % len(owners)],
            image="local", gpu_memory=int(share),
            colour=number % 10, started_at=start, finished_at=end - timedelta(minutes=1440 - stop),
        )  # fmt: skip
        made.append(container)
        held = share * dice.uniform(0.3, 0.9)
        for minute in range(first, stop, every):
            held = min(share, max(share * 0.1, held * dice.uniform(0.97, 1.03)))
            samples.append(UsageSample(at=end - timedelta(minutes=1440 - minute), span=60, gpu=card,
                                       container=container, used=int(held), peak=int(held), granted=int(held),
                                       utilisation=dice.choice((0, 30, 60, 90))))  # fmt: skip
    Container.objects.bulk_create(made)
    for number, container in enumerate(made):
        Container.objects.filter(pk=container.pk).update(created_at=container.started_at + timedelta(seconds=number))
    UsageSample.objects.bulk_create(samples, batch_size=5000)
    return made


# Who, with how many containers, holding how many GiB of 160, had so much of the fair share, waited seconds.
LAB = (
    ("greta", 20, 52, 2.05, 40), ("ann", 2, 20, 0.98, 900), ("bob", 3, 24, 1.12, 600), ("chen", 1, 16, 0.9, 2400),
    ("dora", 2, 12, 0.82, 1500), ("emil", 1, 10, 0.76, 3100), ("farid", 1, 14, 0.71, 4000), ("hanna", 1, 4, 0.66, 5200),
)  # fmt: skip


def a_lab_of_eight() -> None:
    """A busy week of eight people on two cards: one has twenty containers and filled the cards first."""
    dice = random.Random(11)
    cards = [rows.gpu(index, 80 * GIB, name="NVIDIA H100 80GB") for index in (0, 1)]
    this_hour = int(timezone.now().timestamp()) // 3600
    hours, samples = [], []
    for number, (name, count, held, ratio, waited) in enumerate(LAB):
        owner = person(name)
        for each in range(count):
            made = rows.container(f"{name}-{each}", owner, cards[each % 2], quota=held / count, used=held / count,
                                  granted=held / count, colour=number, started_at=rows.ago(86400 * 6))  # fmt: skip
            Container.objects.filter(pk=made.pk).update(created_at=rows.ago(86400 * 6))
            samples += [
                UsageSample(at=rows.ago(3600 * hour), span=3600, gpu=cards[each % 2], container=made,
                            used=int(held / count * GIB), peak=int(held / count * GIB), utilisation=70,
                            had=3600 * ratio / 8 / count, due=3600 / 8 / count, suspended=0)
                for hour in range(1, 140)
            ]  # fmt: skip
        waits = ((waited * part, 3600 * (number + 2 * place)) for place, part in ((3, 0.4), (2, 1.0), (1, 1.6)))
        audit.append(events=[
            AllocationEvent(at=rows.ago(age + shift), kind=kind, container=made, gpu=cards[0], bytes=GIB, waited=wait)
            for length, age in waits
            for kind, shift, wait in ((EventKind.SUSPENDED, length, 0), (EventKind.RESUMED, 0, length))
        ])  # fmt: skip
        for ago in range(140):
            if ago % 24 not in (3, 4, 5, 6, 7):  # nobody waits at night
                had = 20 * (1 + (ratio - 1) * dice.uniform(0.4, 1.6))
                hours.append(UsageHour(gpu=cards[ago % 2], person=name, hour=this_hour - ago, had=had, due=20.0))
        Usage.objects.create(gpu=cards[0], person=name, at=timezone.now(), ratio=ratio, share=20 * GIB)
    UsageHour.objects.bulk_create(hours)
    UsageSample.objects.bulk_create(samples)


OWNERS = (
    "ann",
    "bartholomäus.von-und-zu-hohenstein@students.informatik.universität-musterstadt.example",
    "Ψαρρού.Ζωή@παράδειγμα.example",
    "田中さくら@例え.テスト",
    "maria-magdalena.fernandez-de-la-fuente+experiments-2026@department-of-computational-linguistics.example",
)
LONGEST = "a-name-as-long-as-names-may-be-with-sixty-three-letters-exactly"


def a_crowd(containers: int = 200, waiters: int = 30) -> tuple[list[Gpu], list[Container]]:
    """As much as a host may have: two cards, the longest names, owners who are addresses, and a long queue."""
    dice = random.Random(5)
    cards = [rows.gpu(index, 80 * GIB, name="NVIDIA H200 NVL 141GB HBM3e") for index in (0, 1)]
    people = [person(name) for name in OWNERS]
    part = 2 * 75 / (containers - waiters)
    made = []
    for number in range(containers):
        card, waits = cards[number % 2], number >= containers - waiters
        name = f"{LONGEST[: 59 - number % 40]}-{number:03}" if number % 3 else f"job-{number}"
        waiting = {"suspended_since": rows.ago(30 * number), "queue_position": number + waiters + 1 - containers,
                   "queue_reason": f"Needs 8 GiB; 2.1 GiB is free. Next when {LONGEST[:55]}-001 ends."}  # fmt: skip
        fields = waiting if waits else {}
        held = 0 if waits else part * dice.uniform(0.4, 0.95)
        fields |= {"quota": 8 if waits else part, "used": held, "granted": held, "colour": number % 40,
                   "cpus_used": round(dice.uniform(0, 4), 2), "memory_used": dice.randrange(1, 9 * 2**30),
                   "image": "registry.example.org/vision/group/pytorch-with-everything:2.4-cuda12.4"}  # fmt: skip
        made.append(rows.container(name, people[number % len(people)], card, **fields))
    Claim.objects.filter(container__in=made[: containers - waiters]).update(utilisation=7, had_lately=0.6)
    return cards, made

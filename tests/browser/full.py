"""What else a lab has besides a crowd (see scenes.py): groups, limits, receivers, tokens, a log, a past.

With the longest names there are, so that no page is looked at while it is empty.
"""

from datetime import timedelta

from django.contrib.auth.models import Group, User
from django.utils import timezone

from tests.browser.scenes import LONGEST, OWNERS
from tests.support import rows
from web import audit
from web.models import (
    AllocationEvent,
    Allowance,
    Claim,
    Container,
    Delivery,
    Episode,
    Gpu,
    Receiver,
    Rule,
    Silence,
    UsageSample,
)
from web.people import tokens

GIB = rows.GIB
GROUP = "computational linguistics, the group with the longest name of all 計算言語学"
EventKind = AllocationEvent.Kind


def fill(cards: list[Gpu], made: list[Container]) -> None:
    """Everything below, for the cards and containers of `scenes.a_crowd`."""
    trouble(cards, made)
    people(cards)
    notifications(made)
    past(cards, made)
    marked(cards[0])


def trouble(cards: list[Gpu], made: list[Container]) -> None:
    """Containers that need somebody, and a card that does."""
    Container.objects.filter(pk__in=[each.pk for each in made[:-1]]).update(created_at=rows.ago(9000))
    Container.objects.filter(pk__in=[each.pk for each in made[4:14:5]]).update(paused_at=rows.ago(1800))
    Container.objects.filter(pk=made[1].pk).update(idle_since=rows.ago(4000))
    Claim.objects.filter(container=made[2]).update(unexplained=700 << 20)
    uncapped = [{"pid": 4711, "used": 0, "real": 1 << 30, "uncapped": True}]
    Claim.objects.filter(container=made[3]).update(processes=uncapped)
    Gpu.objects.filter(pk=cards[0].pk).update(xid=79, xid_at=rows.ago(60))
    held = [{"pid": 31337, "bytes": 2 * GIB, "user": "root", "command": "/usr/lib/xorg/Xorg"}]
    Gpu.objects.filter(pk=cards[1].pk).update(foreign=2 * GIB, strangers=held)


def people(cards: list[Gpu]) -> None:
    group = Group.objects.create(name=GROUP)
    for user in User.objects.filter(username__in=OWNERS):
        user.groups.add(group)
    images = ["registry.example.org/vision/group/*", "nvcr.io/nvidia/pytorch:*"]
    Allowance.objects.create(group=group, containers=60, gib_hours=5000, images=images)
    longest = User.objects.get(username=OWNERS[-1])
    Allowance.objects.create(
        user=longest, gpu_memory=80 * GIB, gpus=[cards[1].uuid, "GPU-0f1e2d3c-4b5a-6978-8796-a5b4"]
    )
    for name in (f"the notebook of {OWNERS[-1][:60]}", "ci"):
        tokens.make(longest, name, expires_at=timezone.now() + timedelta(days=40))
    for number in range(60):
        detail = {"image": "registry.example.org/vision/group/pytorch-with-everything", "volumes": ["/data/x" * 9]}
        audit.record(OWNERS[number % 5], "launch-refused", f"{LONGEST[:50]}-{number}", **detail)


def notifications(made: list[Container]) -> None:
    long = "https://hooks.department-of-computational-linguistics.example/gpushare/attention/of/everything?to=on-call"
    hook = Receiver.objects.create(
        name="on-call of computational linguistics", kind="webhook", url=long, secret="s" * 20, failures=4
    )
    mail = Receiver.objects.create(name="admins", kind="mail", addresses=[OWNERS[1], OWNERS[4]])
    Rule.objects.create(receiver=hook, kinds=["waiting", "holding", "uncapped"], minutes=5, repeat_minutes=240)
    Rule.objects.create(receiver=mail, severity="critical")
    Silence.objects.create(
        until=timezone.now() + timedelta(hours=5),
        person=OWNERS[-1],
        container=LONGEST,
        kind="holding",
        note="Until the deadline of the paper.",
        made_by=OWNERS[1],
    )
    for number, container in enumerate(made[-30:]):
        text = f'"{container.name}" waits for memory. {container.queue_reason}'
        whose = {"kind": "waiting", "person": container.owner.username, "container": container.name}
        episode, _ = Episode.objects.update_or_create(  # a site that runs may have made it already
            key=f"waiting:{container.pk}", defaults={**whose, "message": text, "began_at": rows.ago(900)}
        )
        sent = {"done_at": rows.ago(890), "outcome": "sent"} if number % 3 else {"error": "It took longer than 20 s."}
        Delivery.objects.create(
            receiver=(hook, mail)[number % 2],
            episode=episode,
            phase="firing",
            tries=1 + number % 3,
            made_at=rows.ago(900),
            due_at=rows.ago(0),
            tried_at=rows.ago(895),
            **sent,
        )


def past(cards: list[Gpu], made: list[Container]) -> None:
    """What each held for two hours, for reports; and a last hour of the cards that is as full as they are."""
    held = dict(Claim.objects.filter(container__in=made).values_list("container", "used"))
    audit.append(
        events=[
            AllocationEvent(
                at=rows.ago(7200),
                kind=EventKind.ACCEPTED,
                container=each,
                gpu=cards[number % 2],
                pid=1,
                bytes=held[each.pk],
                used_after=held[each.pk],
                policy="fair",
            )
            for number, each in enumerate(made[:-1])
        ]
    )
    for card in cards:
        UsageSample.objects.filter(gpu=card, container=None).update(used=50 * GIB, peak=51 * GIB)


def marked(card: Gpu) -> None:
    """Waits and ends within the day that history shows."""
    day = list(Container.objects.filter(samples__gpu=card, samples__span=60).distinct())
    at = timezone.now() - timedelta(hours=6)
    events = []
    for number, each in enumerate(day[:6]):
        start = at + timedelta(minutes=20 * number)
        events.append(
            AllocationEvent(
                at=start,
                kind=EventKind.SUSPENDED,
                container=each,
                gpu=card,
                pid=1,
                bytes=GIB,
                used_after=0,
                detail="Needs 1 GiB.",
            )
        )
        events.append(
            AllocationEvent(
                at=start + timedelta(minutes=12),
                kind=EventKind.RESUMED,
                container=each,
                gpu=card,
                pid=1,
                bytes=GIB,
                used_after=GIB,
                waited=720.0,
            )
        )
    audit.append(events=events)

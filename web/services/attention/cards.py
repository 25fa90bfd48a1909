"""What is wrong with a card, and who holds its memory without being a container."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from shlex import quote
from typing import Any

from django.conf import settings
from django.db.models import Count, Prefetch, Q, Sum, prefetch_related_objects
from django.db.models.functions import Coalesce

from web.models import Gpu, Node, Reservation
from web.models.hosts import large_of_nodes
from web.services.attention.item import Item, Kind
from web.sizes import format_size

FOREIGN = 512 << 20  # bytes; what a desktop or a driver's tool takes is not worth a word
OUT_OF_SERVICE = "is out of service: it takes no new containers; running containers continue."
UNDRAIN = "gpushare gpus GPU --undrain"
XID_SECONDS = 3600  # after a critical error: long enough to be seen, and to see the next one


def items(now: datetime) -> Iterator[Item]:
    live = Q(claims__container__finished_at=None)
    ours = Coalesce(Sum("claims__unexplained", filter=live), 0)
    there = Gpu.objects.filter(
        ~Q(drained_at=None)
        | Q(present=False)
        | Q(foreign__gte=FOREIGN)
        | Q(ecc_errors__gt=0)
        | ~Q(xid_at=None)
        | ~Q(hot_since=None)
    )
    found = list(there.annotate(ours=ours, promised=Count("claims", filter=live & Q(claims__isnull=False))))
    if found and Node.several():
        prefetch_related_objects(found, Prefetch("node", Node.objects.defer(*large_of_nodes())))
    for gpu in found:
        if gpu.drained_at is not None:
            yield _of(gpu, Kind.DRAINED, f"{_named(gpu)} {OUT_OF_SERVICE} {gpu.drain_reason}", gpu.drained_at, UNDRAIN)
        if gpu.present:
            yield from _faults(gpu, now)
            yield from _foreign(gpu, gpu.foreign - gpu.ours)
        elif gpu.promised:
            message = f"{_named(gpu)} is gone, and containers still have a quota on it. Look at the driver's log."
            yield _of(gpu, Kind.GPU_GONE, message, command="nvidia-smi -L; dmesg | grep NVRM")


def reserved(now: datetime) -> Iterator[Item]:
    """Reservations that lack something now, or will when they begin, as schedulers find; or whose GPU is gone."""
    lacking = Q(cards__short__gt=0) | Q(cards__gpu__present=False)
    for each in Reservation.objects.open(now).filter(lacking).distinct().whole():
        begins, ends = each.next_span(now) or (now, now)
        for card in each.cards.all():
            gpu, what = card.gpu, f"{each.holder} from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC"
            name = f"GPU {gpu.index} of {gpu.node.name}"
            if not gpu.present:
                message = f"{name} is gone, and is reserved for {what}. Cancel that, or reserve another GPU."
            elif card.short:
                message = (
                    f"{format_size(card.short)} of what is reserved on {name} for {what} is missing: it is held by "
                    "containers that cannot be moved, or for which host memory has no room."
                )
            else:
                continue
            person = each.user.get_username() if each.user else ""
            yield Item(f"{Kind.RESERVED_SHORT}:{card.pk}:{begins:%Y%m%d%H%M}", Kind.RESERVED_SHORT, person, message,
                       gpu=gpu, command="gpushare reservations")  # fmt: skip


def _faults(gpu: Gpu, now: datetime) -> Iterator[Item]:
    if gpu.xid_at is not None and now - gpu.xid_at < timedelta(seconds=XID_SECONDS):
        message = (
            f"{_named(gpu)} reported the critical error XID {gpu.xid}. NVIDIA's list of XIDs says what it means; the "
            "kernel's log (`dmesg`) has more. Programs on it may fail until it is reset."
        )
        yield _of(gpu, Kind.XID, message, gpu.xid_at, "dmesg | grep Xid")
    if gpu.ecc_errors:
        message = (
            f"{_named(gpu)} had {gpu.ecc_errors} uncorrected memory error{'s' * (gpu.ecc_errors > 1)} since its "
            "driver was loaded: results on it may be wrong. Take the load off it and reset it (`nvidia-smi -r`)."
        )
        yield _of(gpu, Kind.ECC, message, command=f"nvidia-smi -q -d ECC -i {quote(gpu.uuid)}")
    if gpu.hot_since is not None:
        message = (
            f"{_named(gpu)} is at {gpu.temperature} °C; its limit is {settings.GPUSHARE_TEMPERATURE:g} °C. "
            "A hotter card slows down. Check its fans and the cooling of the room."
        )
        yield _of(gpu, Kind.HOT, message, gpu.hot_since, f"nvidia-smi -q -d TEMPERATURE -i {quote(gpu.uuid)}")


def _foreign(gpu: Gpu, size: int) -> Iterator[Item]:
    if size < FOREIGN:
        return
    message = f"{format_size(size)} of {_named(gpu)} is used by programs outside all containers"
    named = [_stranger(each) for each in gpu.strangers]
    message += f": {'; '.join(named)}. Their owners can end them." if named else ": nvidia-smi names them."
    pids = ",".join(str(each["pid"]) for each in gpu.strangers)
    yield _of(gpu, Kind.FOREIGN, message, command=f"ps -o pid,user,lstart,args -p {pids}" if pids else "nvidia-smi")


def _named(gpu: Gpu) -> str:
    """With its node where that was read with it: there are several."""
    return f"GPU {gpu.index} of {gpu.node.name}" if "node" in gpu._state.fields_cache else f"GPU {gpu.index}"


def _stranger(process: Mapping[str, Any]) -> str:
    owner = f" of {process['user']}" if process["user"] else ""
    runs = f" ({process['command']})" if process["command"] else ""
    return f"process {process['pid']}{owner}{runs}, {format_size(process['bytes'])}"


def _of(gpu: Gpu, kind: Kind, message: str, since: datetime | None = None, command: str = "") -> Item:
    return Item(f"{kind}:{gpu.uuid}", kind, "", message, since, gpu=gpu, command=command)

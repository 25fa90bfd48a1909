"""What is the host's: its scheduler, its engine, its disks and memory, its audit log."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256

from django.conf import settings

from web.audit import verified
from web.models import Announcement, Node
from web.models.hosts import SKEW
from web.services.attention.item import Item, Kind
from web.sizes import format_size

VERIFY = "gpushare-manage verify_audit"


def items(nodes: Sequence[Node], now: datetime) -> Iterator[Item]:
    """`nodes`: those that are listed."""
    for node in nodes:
        if not node.is_alive():
            message = (
                f'The scheduler of "{node.name}" is away. Running containers are not affected, but no memory is '
                "granted. Restart it."
            )
            yield _of(node, Kind.SCHEDULER_AWAY, message, "systemctl restart gpushare-scheduler", node.seen_at)
            continue  # what it last said of the rest may be long ago
        if node.engine_error:
            said = f"On {node.name}: {node.engine_error}" if len(nodes) > 1 else node.engine_error
            yield _of(node, Kind.ENGINE_AWAY, said, "systemctl status docker")
        if node.release not in ("", settings.GPUSHARE_VERSION):
            message = (
                f'The scheduler of "{node.name}" is of release {node.release}, and this web side of '
                f"{settings.GPUSHARE_VERSION}: features that only one of them has do not work. Upgrade the older one."
            )
            yield _of(node, Kind.OTHER_RELEASE, message, "gpushare --version")
        yield from _nearly_full(node)
        if abs(node.skew) >= SKEW:
            message = (
                f'The clock of "{node.name}" is {abs(node.skew):.0f} s {"ahead of" if node.skew > 0 else "behind"} the '
                "database's: its events have wrong times. Synchronise both: `timedatectl set-ntp true`."
            )
            yield _of(node, Kind.CLOCK_WRONG, message, "timedatectl set-ntp true")
    yield from _audit(nodes)
    yield from _announced(now)


def _of(node: Node, kind: Kind, message: str, command: str, since: datetime | None = None) -> Item:
    return Item(f"{kind}:{node.name}", kind, "", message, since, command=command, node=node.name)


def _nearly_full(node: Node) -> Iterator[Item]:
    for each in node.nearly_full:
        left = f"{format_size(each['free'])} of {format_size(each['total'])} is free"
        command = "ps -eo pid,user,rss,args --sort=-rss | head -20"
        if each["of"] == "host memory":
            message = (
                f'The memory of "{node.name}" is nearly full: {left}. The kernel kills programs when none is left.'
            )
        else:
            command = "df -h; docker system df"
            message = (
                f'On "{node.name}", {each["of"]} is nearly full: {left}. A full disk refuses launches and records.'
            )
        since = datetime.fromtimestamp(each["since"], UTC)
        where = sha256(str(each["of"]).encode()).hexdigest()[:16]  # a folder's path may be of any length
        key = f"{Kind.NEARLY_FULL}:{node.name}:{where}"
        yield Item(key, Kind.NEARLY_FULL, "", message, since, command=command, node=node.name)


def _announced(now: datetime) -> Iterator[Item]:
    for each in Announcement.objects.current(now):
        node = each.gpu.node if each.gpu else each.node
        yield Item(f"{Kind.ANNOUNCED}:{each.pk}", Kind.ANNOUNCED, "", each.said, each.made_at,
                   node=node.name if node else "")  # fmt: skip


def _audit(nodes: Sequence[Node]) -> Iterator[Item]:
    """One item, whoever has found it: the last verification, or a scheduler that notes the chain's end."""
    last = verified.last()
    if last and not last[1]:
        message = f"{last[2]} `manage.py verify_audit` lists all; compare with a backup."
        yield Item(Kind.AUDIT_BROKEN, Kind.AUDIT_BROKEN, "", message, verified.broken_since(), command=VERIFY)
    elif said := next((node.audit_error for node in nodes if node.audit_error), ""):
        yield Item(Kind.AUDIT_BROKEN, Kind.AUDIT_BROKEN, "", said, command=VERIFY)

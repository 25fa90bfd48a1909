"""The table of containers: searched, filtered, sorted and cut into pages by the database."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db.models import Case, Max, Q, QuerySet, Sum, When
from django.db.models.functions import Coalesce
from django.http import QueryDict
from django.utils import timezone

from web.models import Claim, Container, ContainerQuerySet, Node, State, large
from web.models.hosts import ordered
from web.models.states import ENDED, place_of_state
from web.pages.text import STATES
from web.people.roles import Deed, Rights, rights_of
from web.sizes import format_size, tenths, whole
from web.spec import quotas
from web.times import seconds

PER_PAGE = 50
JUST_ENDED = timedelta(minutes=10)  # how long an ended container stays among the current ones: its end is news

COLUMNS: dict[str, tuple[str, str]] = {  # name → label, what it sorts by
    "name": ("Name", "name"),
    "state": ("State", ""),
    "owner": ("Owner", "owner__username"),
    "image": ("Image", "image"),
    "namespace": ("Namespace", "namespace"),  # where there are any: of a Kubernetes cluster
    "node": ("Node", "node__name"),  # where there are several
    "gpu": ("GPU", ""),
    "memory": ("Used / quota / peak", "used"),
    "load": ("GPU / CPU / RAM", ""),
    "suspended": ("Suspended", "suspended_since"),
    "age": ("Age", "created_at"),
}
BY_PLACE = ""  # holders by size, then who waits by place in the queue, then what has ended


@dataclass
class Page:
    """What parts/containers.html and parts/rows.html show."""

    q: str
    state: str
    owner: str  # containers of this person alone
    mine: bool  # who is whoever asks
    sort: str
    number: int
    pages: int
    total: int
    items: list[dict[str, Any]]
    filtered: bool
    may_act: bool
    may_launch: bool
    owners: Sequence[str] = ()  # to choose from
    node: str = ""  # containers of this one alone
    nodes: Sequence[str] = ()  # to choose from, where there are several
    namespace: str = ""  # containers of this one alone
    namespaces: Sequence[str] = ()  # of those that live, to choose from

    @property
    def states(self) -> list[tuple[str, str]]:
        return [("", "Active and recent"), *STATES.items(), ("all", "All")]

    @property
    def columns(self) -> list[dict[str, Any]]:
        def column(name: str, label: str) -> dict[str, Any]:
            aria = {name: "ascending", f"-{name}": "descending"}.get(self.sort, "none")
            return {"name": name, "label": label, "aria": aria, "next": f"-{name}" if self.sort == name else name}

        absent = {"node": not self.nodes, "namespace": not self.namespaces}
        return [column(name, label) for name, (label, _by) in COLUMNS.items() if not absent.get(name)]


def page(user: User, query: QueryDict) -> Page:
    """The page that `query` asks for. Nonsense in it is ignored: an address typed by hand still shows a table."""
    q, state = query.get("q", "").strip()[:100], query.get("state", "")
    me = user.get_username()
    owner = query.get("owner", "")[:150] or (me if query.get("mine") == "1" else "")
    sort = query.get("sort", "")
    sort = sort if sort.removeprefix("-") in COLUMNS else BY_PLACE
    hosts = list(Node.objects.listed().order_by("name").only("name", "seen_at"))
    nodes = [host.name for host in hosts] if len(hosts) > 1 else []
    away = {host.name for host in hosts if not host.is_alive()}
    node = query.get("node", "") if query.get("node") in nodes else ""
    namespace = query.get("namespace", "")[:63]
    found = _found(q, state, owner)
    if node:
        found = found.filter(node__name=node)
    if namespace:
        found = found.filter(namespace=namespace)
    paginator = Paginator(_sorted(found, sort), PER_PAGE)
    chosen = paginator.get_page(query.get("page"))
    rights = rights_of(user)
    items = [_item(container, rights, away) for container in chosen.object_list]
    return Page(
        q, state, owner, owner == me, sort, chosen.number, paginator.num_pages, paginator.count, items,
        filtered=bool(q or state or owner or node or namespace),
        may_act=any(item["may_act"] for item in items),
        may_launch=rights.may(Deed.LAUNCH),
        owners=_owners(me, owner),
        node=node,
        nodes=nodes,
        namespace=namespace,
        namespaces=_namespaces(namespace),
    )  # fmt: skip


def _namespaces(chosen: str) -> list[str]:
    """What can be chosen from: nothing where no pods live. What was chosen stays in it."""
    living = Container.objects.live().exclude(namespace="").order_by()
    return sorted({*living.values_list("namespace", flat=True).distinct(), *([chosen] if chosen else [])})


def _owners(me: str, chosen: str) -> list[str]:
    """Whoever has a container that lives, whoever asks, and who was chosen."""
    living = Container.objects.live().order_by().values_list("owner__username", flat=True)
    return sorted({me, *living.distinct(), *([chosen] if chosen else [])})


def _found(q: str, state: str, owner: str) -> ContainerQuerySet:
    # Who asks for failures wants those that were removed since, and launches that were refused, too.
    listed = Container.objects.all() if state in ENDED else Container.objects.listed()
    found = listed.whole().defer(*large())
    if owner:
        found = found.filter(owner__username=owner)
    if (
        q and found.filter(owner__username__iexact=q).exists()
    ):  # a whole name means that person, not "adapter" for "ada"
        found = found.filter(Q(owner__username__iexact=q) | Q(name__iexact=q))
    elif q:
        found = found.filter(
            Q(name__icontains=q) | Q(owner__username__icontains=q) | Q(image__icontains=q) | Q(namespace__icontains=q)
        )
    if state in State:
        return found.in_state(State(state))
    if state == "all":
        return found
    return found.filter(Q(finished_at=None) | Q(finished_at__gt=timezone.now() - JUST_ENDED))


def _sorted(found: QuerySet[Container], sort: str) -> QuerySet[Container]:
    name, down = sort.removeprefix("-"), sort.startswith("-")
    match name:
        case "":
            where = Case(
                When(finished_at__isnull=False, then=2), When(suspended_since__isnull=False, then=1), default=0
            )
            found = found.annotate(where=where, used=Coalesce(Sum("claims__used"), 0))
            return found.order_by("where", ordered("queue_position"), "-used", "-created_at")
        case "memory":
            found, by = found.annotate(used=Coalesce(Sum("claims__used"), 0)), "used"
        case "gpu":
            found, by = found.annotate(first_gpu=Sum("claims__gpu__index")), "first_gpu"
        case "load":
            found, by = found.annotate(busy=Max("claims__utilisation")), "busy"
        case "state":
            found, by = found.annotate(place=place_of_state()), "place"
        case "age" | "suspended":  # an age grows as its time lies further back
            by, down = COLUMNS[name][1], not down
        case _:
            by = COLUMNS[name][1]
    return found.order_by(ordered(by, down=down), "-created_at")


def ran(container: Container) -> float | None:
    """Seconds, of one that has ended; None of one that never started."""
    if container.finished_at is None or container.started_at is None:
        return None
    return (container.finished_at - container.started_at).total_seconds()


def _is_past_the_shim(claim: Claim) -> bool:
    return claim.unexplained > 0 or any(process.get("uncapped") for process in claim.processes)


def _item(container: Container, rights: Rights, away: Set[str]) -> dict[str, Any]:
    """`away`: the names of nodes of which nobody knows how it is there now."""
    claims = list(container.claims.all())
    is_reported = container.finished_at is None and container.node_name not in away
    return {
        "id": container.pk,
        "name": container.name,
        "owner": container.owner.get_username(),
        "image": container.image,
        "namespace": container.namespace,
        "node": container.node_name,
        "state": container.state.value,
        "state_label": STATES[container.state],
        "mark": container.colour,
        "gpu_indexes": ", ".join(str(claim.gpu.index) for claim in claims),
        "used": sum(claim.used for claim in claims),
        "quota": sum(claim.quota for claim in claims) or quotas.asked(container.gpu_memory) * container.gpu_count,
        "peak": sum(claim.peak for claim in claims),
        "load": load(container, claims),
        "suspended_since": seconds(container.waiting_since),
        "created_at": seconds(container.created_at),
        "ended": container.finished_at is not None,
        "finished_at": container.finished_at,
        "exit_code": container.exit_code,
        "ran": ran(container),
        "past_shim": is_reported and any(map(_is_past_the_shim, claims)),
        "may_act": rights.steers(container),
    }


def load(container: Container, claims: Sequence[Claim]) -> str:
    """What it computes on its GPUs, processors, and host RAM, as static/gpushare/panels/load.js writes it."""
    busy = [claim.utilisation for claim in claims if claim.utilisation is not None]
    gpu = f"{whole(sum(busy) / len(busy))} %" if busy else "–"
    cpus = "–" if container.cpus_used is None else tenths(container.cpus_used)
    memory = "–" if container.memory_used is None else format_size(container.memory_used)
    return f"{gpu} / {cpus} / {memory}"

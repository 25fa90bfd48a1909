"""Taking over what a placer has brought to a host: the record is there already, and the first host to ask has it.

Asked by a scheduler when Docker mounts the volume. A Swarm may begin one job twice (moby/moby#53632: once for each
manager that has led), on this node or another: the second is refused, so it never starts.

That the Swarm has given it to this host is shown by the key in the volume's options, which a Swarm tells its managers
and the host that is to run it, and nobody else. So a host with a database role of its own, which sees no launch before
it is its own, can take that one and no other: PostgreSQL does it for such a host (joining/functions.py).
"""

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, Q, Value, When

from web import audit
from web.audit import seals
from web.errors import Problem, conflict
from web.models import Container, Gpu
from web.models.functions import ask
from web.models.records import FOR_A_NODE
from web.people import allowances
from web.services import admission, runs
from web.services.joining.functions import PLACED
from web.services.placement.placement_ticket import PlacementTicket
from web.services.placement.policies import in_service
from web.sizes import format_size


def require_wanted(ticket: PlacementTicket) -> None:
    """Refuses a volume whose container nobody has launched, or has called off. Raises Problem."""
    if runs.begun(ticket):
        return
    if settings.GPUSHARE_AUDIT_KEY:
        ((wanted,),) = ask("SELECT gpushare_is_wanted(%s, %s)", ticket.container, ticket.key)
    else:
        wanted = Container.objects.filter(_wanted(ticket)).exists()
    if not wanted:
        raise runs.called_off()


def accept(node: int, volume: str, mount: str, ticket: PlacementTicket) -> Container:
    """Its record, with its claims on cards of this node. The same mount again is the same. Raises Problem."""
    with transaction.atomic():
        its = Container.objects.live().whole().filter(Q(pk=ticket.container) | Q(run_of=ticket.container))
        if same := its.filter(node=node, mount=mount).first():
            return same
        if runs.begun(ticket):
            container = runs.next_of(ticket, node, volume, mount, _cards(node, ticket))
        else:
            container = _begin(node, volume, mount, ticket)
    return Container.objects.whole().get(pk=container.pk)


def _begin(node: int, volume: str, mount: str, ticket: PlacementTicket) -> Container:
    """Its first run, or its only one."""
    require_wanted(ticket)
    if not settings.GPUSHARE_AUDIT_KEY:  # before its record; with a host's own role PostgreSQL holds it
        allowances.hold(Container.objects.whole().get(pk=ticket.container).owner)
    if not _is_ours(node, volume, mount, ticket):
        raise conflict("This launch has been started already.", code="started_already")
    container = Container.objects.live().whole().get(pk=ticket.container)
    claims = _cards(node, ticket)
    if container.gpu_memory is None:  # its label was looked at when it was handed over
        allowances.require_promise(container, sum(claims.values()))
        Container.objects.filter(pk=container.pk).update(gpu_memory=ticket.quota)
    admission.promise(container, claims)
    audit.record(seals.DOCKER, "taken", container.pk, name=container.name, **ticket.audit_detail(volume))
    return container


def _wanted(ticket: PlacementTicket) -> Q:
    """The launch that this is about, if it is to run."""
    return Q(pk=ticket.container, handed=ticket.key, kill_requested_at=None, finished_at=None) & ~Q(handed="")


def _is_ours(node: int, volume: str, mount: str, ticket: PlacementTicket) -> bool:
    """Whether it is this node's from now on: nobody else has been faster."""
    if settings.GPUSHARE_AUDIT_KEY:
        ((taken,),) = ask("SELECT gpushare_take(%s, %s, %s, %s)", ticket.container, ticket.key, volume, mount)
        return bool(taken)
    free = Container.objects.filter(FOR_A_NODE, _wanted(ticket))
    # The Swarm may have heard which one, and why.
    why = Case(When(node_reason="", then=Value(PLACED)), default=F("node_reason"))
    return bool(free.update(node=node, node_reason=why, volume=volume, mount=mount, engine="", queue_reason=""))


def _cards(node: int, ticket: PlacementTicket) -> dict[str, int]:
    """Bytes by GPU."""
    gpus = list(Gpu.objects.filter(node=node, present=True, index__in=ticket.cards))
    if missing := set(ticket.cards) - {gpu.index for gpu in gpus}:
        message = (
            f"The Swarm has reserved card {min(missing)}, and this host has none of that number: see gpushare doctor."
        )
        raise Problem("no_such_gpu", message, 409)
    if short := [gpu for gpu in gpus if gpu.most < ticket.quota]:
        raise Problem(
            "over_capacity",
            f"The Swarm has reserved {format_size(ticket.quota)} on card {short[0].index}, which can never give more "
            f"than {format_size(short[0].most)}: it is declared as larger than it is, see gpushare doctor.",
            409,
        )
    return {gpu.uuid: ticket.quota for gpu in in_service(gpus, len(gpus))}

"""What was: incidents, the replay of a day or of any other length of time, and who held what at one moment of it."""

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.gzip import gzip_page

from web.errors import invalid
from web.history import incidents, samples
from web.history.marks import marks
from web.models import Container, Gpu, Node
from web.pages.frame import page_view, person, show
from web.people.roles import steered_by
from web.spec import periods

LENGTHS = {"168": "7 days", "24": "24 hours", "6": "6 hours", "1": "1 hour"}
DAY = "24"
PER_PAGE = 100
OPENED = 10  # failures whose last lines are there without a click
WITH_OUTPUT = {incidents.Kind.FAILED, incidents.Kind.KILLED, incidents.Kind.EXITED}


@page_view
def replay(request: HttpRequest) -> HttpResponse:
    """?until= (seconds since the epoch; now if it is left out) and ?hours=, one of LENGTHS. Nonsense shows a day.

    ?gpu= (a UUID); where there are several nodes ?node= too, whose first GPU is shown if that one is another's.
    ?namespace= of a Kubernetes cluster: the containers of others are shown as one.
    """
    several = Node.several()
    gpus = Gpu.objects.select_related("node").only("uuid", "index", "name", "simulated", "node__name")
    chosen = gpus.filter(uuid=request.GET.get("gpu", "")).first() or gpus.first()
    if several and (wanted := request.GET.get("node")) and chosen and chosen.node.name != wanted:
        chosen = gpus.filter(node__name=wanted).first() or chosen
    if several and chosen:  # of its node alone: there may be thousands
        gpus = gpus.filter(node=chosen.node_id)
    period = _period(request)
    namespace = request.GET.get("namespace", "")[:63]
    kept = {"gpu": chosen.uuid if chosen else "", "hours": period["hours"]} | (
        {"namespace": namespace} if namespace else {}
    )
    context = {
        "gpus": gpus,
        "chosen": chosen,
        "nodes": Node.objects.exclude(gpus=None).order_by("name").values_list("name", flat=True) if several else (),
        "namespace": namespace,
        "kept": urlencode(kept),
        **period,
    }
    return show(request, "history.html", context)


def _period(request: HttpRequest) -> dict[str, Any]:
    """What ?until= and ?hours= ask for, and its neighbours. For templates."""
    hours = request.GET.get("hours", DAY)
    hours = hours if hours in LENGTHS else DAY
    now = timezone.now()
    try:
        until = min(_time(request.GET.get("until")), now)
    except ValueError:
        until = now
    length = timedelta(hours=int(hours))
    return {
        "hours": hours,
        "lengths": LENGTHS.items(),
        "length": LENGTHS[hours],
        "is_now": until >= now,
        "start": until - length,
        "until": until,
        "earlier": int((until - length).timestamp()),
        "later": int((until + length).timestamp()),
    }


@gzip_page
@page_view
def incidents_of(request: HttpRequest) -> HttpResponse:
    """What went wrong in ?hours= up to ?until=, as for `replay`: of ?kind=, of ?person= (a user name), on ?gpu=.

    Nonsense is ignored: an address typed by hand still shows something.
    """
    period = _period(request)
    kind = request.GET.get("kind", "")
    kind = kind if kind in list(incidents.Kind) else ""
    who = request.GET.get("person", "")[:150]
    several = Node.several()
    gpus = list(Gpu.objects.select_related("node").only("uuid", "index", "name", "node__name"))
    gpu = request.GET.get("gpu", "")
    gpu = gpu if gpu in {each.uuid for each in gpus} else ""
    found = incidents.incidents(period["start"], period["until"], kind, who, gpu)
    steers = steered_by(person(request))
    kept = {"hours": period["hours"]} | {
        name: value for name, value in (("kind", kind), ("person", who), ("gpu", gpu)) if value
    }
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    opened = [each for each in page.object_list if each.kind == incidents.Kind.FAILED][:OPENED]
    context = {
        "page": page,
        "rows": [
            {"each": each, "output": each.container and each.kind in WITH_OUTPUT and steers(each.container),
             "opened": each in opened}
            for each in page.object_list
        ],
        "kinds": incidents.LABELS.items(),
        "kind": kind,
        "who": who,
        "people": _people(who),
        "gpus": [(each.uuid, f"{each.node.name} · {each.index}" if several else f"{each.index} · {each.name}")
                 for each in gpus],
        "gpu": gpu,
        "kept": urlencode(kept),
        "link": request.build_absolute_uri(f"?{urlencode({**kept, 'until': int(period['until'].timestamp())})}"),
        **period,
    }  # fmt: skip
    return show(request, "incidents.html", context)


def _people(chosen: str) -> list[str]:
    """To choose from: who ever had a container."""
    owners = Container.objects.order_by().values_list("owner__username", flat=True).distinct()
    return sorted({*owners, *([chosen] if chosen else [])})


@gzip_page
@page_view
def day(request: HttpRequest, uuid: str) -> JsonResponse:
    """24 hours, or ?hours=, up to ?until= (seconds since the epoch; now if left out), and what is marked in them."""
    gpu = get_object_or_404(Gpu, uuid=uuid)
    try:
        until = _time(request.GET.get("until"))
    except ValueError as error:
        return _refused(error, "until")
    if (hours := request.GET.get("hours", DAY)) not in LENGTHS:
        return _refused(ValueError(f"This has to be one of {', '.join(LENGTHS)}."), "hours")
    start = until - timedelta(hours=int(hours))
    return JsonResponse(samples.holders(gpu, start, until) | {"marks": marks(gpu, start, until)})


@page_view
def moment(request: HttpRequest, uuid: str) -> JsonResponse:
    """Who held what at ?at= (seconds since the epoch; now if it is left out)."""
    gpu = get_object_or_404(Gpu, uuid=uuid)
    try:
        at = _time(request.GET.get("at"))
    except ValueError as error:
        return _refused(error, "at")
    return JsonResponse(samples.moment(gpu, at))


def _time(text: str | None) -> datetime:
    return periods.second(text) if text else timezone.now()


def _refused(error: ValueError, field: str) -> JsonResponse:
    return JsonResponse(invalid(str(error), field).as_dict(), status=400)

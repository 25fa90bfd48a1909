"""The overview, and the rows of its table."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.gzip import gzip_page

from web.history import samples
from web.models import Gpu, Node
from web.pages import table
from web.pages.frame import action_view, answer, page_view, person, show
from web.people.roles import Deed, outdated, rights_of
from web.services import steering


@gzip_page  # fifty rows are 70 kB, and 6 kB compressed
@page_view
def dashboard(request: HttpRequest) -> HttpResponse:
    user = person(request)
    rights, node = rights_of(user), Node.here()
    context = {
        "orders": rights.may(Deed.ORDER_QUEUE),
        "steers": "all" if rights.may(Deed.STEER_ALL) else "own" if rights.may(Deed.LAUNCH) else "",
        "rates": (node or Node()).rates(first=True),
        "page": table.page(user, request.GET),
        "outdated": outdated(node, rights),
        "may_manage_nodes": rights.may(Deed.MANAGE_NODES),
        "may_set_compute": rights.may(Deed.SET_COMPUTE),
    }
    return show(request, "dashboard.html", context)


@gzip_page
@page_view
def rows(request: HttpRequest) -> HttpResponse:
    return render(request, "parts/rows.html", {"page": table.page(person(request), request.GET)})


@gzip_page
@page_view
def last_hour(request: HttpRequest, uuid: str) -> JsonResponse:
    return JsonResponse(samples.card(get_object_or_404(Gpu, uuid=uuid)))


@action_view
def compute(request: HttpRequest, uuid: str) -> HttpResponse:
    """How containers share a GPU: ?compute=turns or shared."""
    mode = request.POST.get("compute", "")
    before = Gpu.objects.filter(uuid=uuid).values_list("compute", flat=True).first()
    undo = {"act": "compute", "id": f"gpus/{uuid}", "fields": {"compute": before}} if before != mode else None
    return answer(request, steering.set_compute(person(request), uuid, mode), undo)

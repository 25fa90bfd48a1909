"""The launch form: filled in with help, previewed on each GPU, and answered field by field."""

import shlex
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from web.errors import Problem
from web.history import peaks
from web.models import Command, Container, Gpu, Node, Planned, Preset
from web.pages import launch_form
from web.pages.frame import page_view, person, post_view, show
from web.people import allowances
from web.people.roles import Deed, may_steer, require, rights_of
from web.services import planning, presets, steering
from web.services.booked import coming
from web.services.sharing import price
from web.sizes import format_size
from web.spec import constraints, quotas
from web.spec.fields import words_of
from web.spec.planned import PLANNING
from web.spec.requests import FIELDS, LONGEST_SECONDS

RECENT = 8
IMAGES = 100
GPU_COUNT = {"name": "gpu_count", "label": "Number of GPUs, if the scheduler chooses"}
PATIENCE = 1.5  # seconds that a preview waits for the scheduler's forecast


@login_required
@require_http_methods(["GET", "POST"])
def launch(request: HttpRequest) -> HttpResponse:
    user = person(request)
    try:
        require(user, Deed.LAUNCH)
        if request.method == "GET":
            return _form(request, _start(request), None)
        made = planning.launch(user, launch_form.spec_of(request.POST))
        if isinstance(made, Planned):
            messages.success(request, f"{made.name} is planned. {made.waits_for}")
            return redirect(f"{reverse('queue_page')}#planned")
        command = steering.wait_for(made)
        if steering.settled(command) and command.container and (said := coming.said_to(command.container)):
            messages.warning(request, said)
        return redirect("container", command.container_id)
    except Problem as problem:
        return _form(request, launch_form.typed(request.POST), problem, launch_form.faults_of(request.POST))


def _start(request: HttpRequest) -> dict[str, Any]:
    """What the form begins with: an earlier launch, or as little as can be."""
    source = _source(request)
    if preset := _preset(request):
        editing = "edit" in request.GET
        return launch_form.of_spec(preset.spec if editing else presets.launch_of(preset, person(request)))
    earlier = Container.objects.filter(pk=source).first() if source else None
    if earlier is None:
        return {"gpu_count": 1, "on_shortage": "wait"}
    return launch_form.again(earlier, may_steer(person(request), earlier))


def _preset(request: HttpRequest) -> Preset | None:
    """Of which the form is."""
    number = request.POST.get("preset") or request.GET.get("preset", "")
    return Preset.objects.filter(pk=int(number)).first() if number.isdecimal() and len(number) < 10 else None


@post_view
def launch_preset(request: HttpRequest, pk: int) -> HttpResponse:
    """As it is, without a question."""
    values: dict[str, Any] = {}
    try:
        spec = presets.launch_of(presets.found(pk), person(request))
        values = launch_form.of_spec(spec)
        command = steering.wait_for(steering.launch(person(request), spec))
        steering.settled(command)
        return redirect("container", command.container_id)
    except Problem as problem:
        return _form(request, values, problem)


@post_view
def save_preset(request: HttpRequest) -> HttpResponse:
    """The form as a preset: a new one, or that which it was opened for."""
    try:
        asked = {name: request.POST.get(f"preset_{name}", "") for name in ("name", "icon", "text")}
        spec = {name: value for name, value in launch_form.spec_of(request.POST).items() if name != "name"}
        changes = request.POST.getlist("preset_changes")
        edited = _preset(request) if request.POST.get("preset_edits") else None
        presets.save(person(request), {**asked, "spec": spec, "changes": changes}, edited)
        return redirect("launch")
    except Problem as problem:
        field = problem.field.removeprefix("spec.")
        shown = Problem(problem.code, problem.message, problem.status, field if field in FIELDS else "")
        return _form(request, launch_form.typed(request.POST), shown)


@post_view
def remove_preset(request: HttpRequest, pk: int) -> HttpResponse:
    user = person(request)
    require(user, Deed.PRESETS)
    presets.remove(user, presets.found(pk))
    return render(request, "parts/presets.html", _presets(request))


def _presets(request: HttpRequest) -> dict[str, Any]:
    offered = presets.offered()
    need_docker = [] if offered else Preset.objects.values_list("name", flat=True)
    writes = rights_of(person(request)).may(Deed.PRESETS)
    return {"presets": offered, "need_docker": need_docker, "writes_presets": writes}


def _source(request: HttpRequest) -> UUID | None:
    """Of the launch to start from."""
    try:
        return UUID(request.GET.get("from", ""))
    except ValueError:
        return None


def _form(
    request: HttpRequest, values: dict[str, Any], problem: Problem | None, faults: dict[str, str] | None = None
) -> HttpResponse:
    user = person(request)
    limits = allowances.limits_of(user)
    field = problem.field.split(".")[0] if problem else ""
    recent = _recent(request)
    what = values.get("image"), values.get("command")
    preset = _preset(request)
    edits = preset is not None and "edit" in request.GET
    fields = launch_form.fields()
    if preset and not edits:
        for name, each in fields.items():
            each["fixed"] = name != "name" and name not in preset.changes
    context = {
        "fields": fields,
        "preset": preset,
        "edits": edits,
        **_presets(request),
        "gpu_count": GPU_COUNT,
        "values": values,
        "later": any(values.get(name) for name in PLANNING),
        "problem": problem,
        "errors": (faults or {}) | ({field: problem.message} if problem and field else {}),
        "images": _images(limits),
        "allowed": limits.images,
        "default_quota": quotas.DEFAULT,
        **_cards(values.get("node", "")),
        "recent": recent,
        "started_from": next((one for one in recent if (one.image, shlex.join(one.command)) == what), None),
    }
    return show(request, "launch.html", context, status=problem.status if problem else 200)


def _cards(node: str) -> dict[str, Any]:
    """What there is to choose from. Of several nodes those of one, once that is chosen: there may be thousands."""
    nodes = list(Node.objects.listed().order_by("name"))
    present = Gpu.objects.filter(present=True)
    closed = [each for each in nodes if not each.takes_launches and node in ("", each.name)]
    if len(nodes) < 2:
        return {"nodes": [], "gpus": present, "closed": closed}
    return {"nodes": nodes, "node": node, "gpus": present.filter(node__name=node), "closed": closed}


@page_view
def cards(request: HttpRequest) -> HttpResponse:
    """The GPUs of ?node=, to choose from."""
    context = _cards(request.GET.get("node", "")) | {"values": {"gpu_count": 1}, "errors": {}, "gpu_count": GPU_COUNT}
    return render(request, "parts/cards.html", context)


def _images(limits: allowances.Allowed) -> list[str]:
    """To choose from: those that somebody has run here, and those allowed by name; none that would be refused."""
    ran = Container.objects.filter(started_at__isnull=False).order_by("image").values_list("image", flat=True)
    known = {image for image in ran.distinct()[:IMAGES] if allowances.allows_image(limits, image)}
    return sorted(known | {image for image in limits.images or () if "*" not in image})


def _recent(request: HttpRequest) -> list[Container]:
    """This person's last launches, each image and command once: templates that nobody had to write.

    Pods are none: they are their cluster's to launch. Nor is what never started, unless it is started from already.
    """
    seen: dict[Any, Container] = {}
    good = Container.objects.filter(Q(started_at__isnull=False) | Q(pk=_source(request)), owner=person(request))
    for container in good.defer("environment").order_by("-created_at")[:60]:
        if not container.is_of_pods:
            seen.setdefault((container.image, tuple(container.command)), container)
    return list(seen.values())[:RECENT]


@page_view
def suggestion(request: HttpRequest) -> JsonResponse:
    """A quota from what runs like this one really took: {"size", "text"}, or {} if too few of them have shown it."""
    image = request.GET.get("image", "").strip()
    try:
        command = words_of(request.GET.get("command", ""))
    except ValueError:  # a quotation mark that is still to be closed
        return JsonResponse({})
    found = peaks.best(person(request), image, command) if image else None
    if found is None or found.suggestion is None:
        return JsonResponse({})
    return JsonResponse({"size": format_size(found.suggestion).replace(" ", ""), "text": _in_words(found)})


def _in_words(found: peaks.Peak) -> str:
    """From which runs, and what they took."""
    whose, alike = ("of yours", "Not all had this command") if found.owner else ("of it", "All had this command")
    text = f"{found.runs} runs {whose} took up to {format_size(found.peak or 0)}. {alike}"
    text += f"; the last ended on {timezone.localtime(found.last):%Y-%m-%d}." if found.last else "."
    if found.rejected_runs:
        text += f" Not counted: {found.rejected_runs} in which a request was rejected."
    return text


@post_view
def forecast(request: HttpRequest) -> JsonResponse:
    """What the scheduler says would become of it now: {"text"}, empty while nothing sensible is asked; or {"again"}."""
    try:
        size = quotas.read(request.POST.get("gpu_memory", "").strip() or quotas.DEFAULT)
        gpus: int | list[str] = request.POST.getlist("gpus") or int(request.POST.get("gpu_count", "") or 1)
        node = request.POST.get("node", "").strip()
        asks = constraints.read(request.POST.get("constraints", "").splitlines())
        limit = float(request.POST.get("ttl_seconds", "").strip() or 0)
        ttl = limit if 1 <= limit <= LONGEST_SECONDS else None
        question = steering.forecast(person(request), size, gpus, node=node, constraints=asks, ttl_seconds=ttl)
        why = "" if node else question.arguments["reason"]
        if (foreseen := _foreseen(question)) is None:
            return JsonResponse({"again": True})
        costs = price(bool(request.POST.get("movable")), gpus if isinstance(gpus, int) else len(gpus))
        sentences = _for_people(foreseen, question.node, why), costs, coming.said_before(question)
        return JsonResponse({"text": " ".join(filter(None, sentences))})
    except ValueError:
        return JsonResponse({})
    except Problem as problem:
        return JsonResponse({"text": problem.message, "bad": True})


def _foreseen(question: Command) -> str | None:
    """The scheduler's answer; None if it takes its time. Raises its refusal as a Problem."""
    try:
        answered = steering.wait_for(question, PATIENCE)
        return (answered.result or {}).get("message", "") if steering.settled(answered) else None
    finally:
        question.delete()  # a question leaves no trace


def _for_people(text: str, node: Node | None, why: str) -> str:
    """The scheduler names GPUs by UUID; the page by their number, and the node where there are several, and why."""
    for uuid, index in Gpu.objects.filter(**({"node": node} if node else {})).values_list("uuid", "index"):
        text = text.replace(uuid, str(index))
    if node is None or not text or not Node.several():
        return text
    return f"Would go to {node.name}. {why} {text}" if why else f"On {node.name}: {text}"


@post_view
def body(request: HttpRequest) -> JsonResponse:
    """The form as a launch over REST and as one by the command line, to be copied: {"body", "cli"}."""
    try:
        spec = launch_form.spec_of(request.POST)
        return JsonResponse({"body": spec, "cli": launch_form.command_line(spec)})
    except Problem as problem:
        return JsonResponse(problem.as_dict(), status=problem.status)

"""People and groups for admins: who there is, who may do what and use what. The rules are web/people's."""

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import Group, User
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, Max, Q, Sum
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.timezone import localtime
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from web.errors import Problem, forbidden, invalid
from web.history import fairness, reports
from web.models import Claim, Container, Token
from web.pages import table
from web.pages.frame import person, show
from web.pages.people import limits
from web.people import accounts, granting, groups, memberships, passwords, shares
from web.people.roles import Deed, Rights, Role, groups_besides_role, is_role, require, rights_of, role_held, role_of
from web.spec import periods
from web.spec.inside import mounts

PER_PAGE = 50
ROLES = [role.group for role in Role]
MOST_GROUPS = 200  # that the page lists; REST has all


def managed(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A page for admins. It shows a refusal on the page of the form, with what was typed still in it."""

    @never_cache
    @login_required
    @require_http_methods(["GET", "POST"])
    @sensitive_post_parameters()
    def guarded(request: HttpRequest, *arguments: Any, **words: Any) -> HttpResponse:
        try:
            require(person(request), Deed.MANAGE)
        except Problem as problem:
            return show(request, "people/not_yours.html", {"problem": problem}, 403)
        return view(request, *arguments, **words)

    return guarded


@managed
def people(request: HttpRequest) -> HttpResponse:
    """All accounts and groups; POST makes one (`do`: person or group)."""
    problem, made_up = None, {}
    if request.method == "POST":
        try:
            match request.POST.get("do"):
                case "person":
                    made_up = _make_person(request)
                    if not made_up.keys() & {"link", "password"}:
                        messages.success(request, f"{made_up['username']} has an account.")
                        return redirect("person", made_up["username"])
                case "group":
                    group = groups.create(person(request), {"name": request.POST.get("name", "")})
                    return redirect("group", group.name)
                case _:
                    raise Http404
        except Problem as refused:
            problem = refused
    q, role = request.GET.get("q", "").strip()[:100], request.GET.get("role", "")
    found = User.objects.prefetch_related("groups").select_related("membership").order_by("username")
    found = found.annotate(key_used=Max("tokens__last_used_at"))
    if q:
        found = found.filter(Q(username__icontains=q) | Q(email__icontains=q) | Q(groups__name=q)).distinct()
    if role in Role.__members__:
        found = found.filter(pk__in=[user.pk for user in found if _role(user) is Role[role]])
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "q": q,
        "role": role,
        "roles": [(each.name, each.group) for each in Role],
        "page": page,
        "rows": _rows(list(page.object_list)),
        "groups": _groups(),
        "role_groups": ROLES,
        "roots": settings.GPUSHARE_VOLUME_ROOTS,
        "default_role": settings.GPUSHARE_DEFAULT_ROLE,
        "problem": problem,
        "typed": request.POST if problem else {},
        "made_up": made_up,
    }
    return show(request, "people/people.html", context, status=problem.status if problem else 200)


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
@sensitive_post_parameters()
def one(request: HttpRequest, username: str) -> HttpResponse:
    """A person: containers, usage and share, for everybody who may look; limits, for themselves and admins.

    Admins change the account here: POST (`do`: account, active, password, shares, forgive, allowance or no-allowance).
    """
    user = User.objects.filter(username=username).first()
    actor, problem = person(request), None
    rights = rights_of(actor)
    if not rights.may(Deed.MANAGE):
        if request.method == "POST":
            refused = forbidden("Only an admin may manage people.")
            return show(request, "people/not_yours.html", {"problem": refused}, 403)
        # Whoever has no container is no other's business.
        if user is None or (user != actor and not user.containers.exists()):
            raise Http404
        return show(request, "people/person.html", _standing(rights, user))
    if user is None:
        raise Http404
    if request.method == "POST":
        try:
            message = _do(actor, user, request.POST, request.build_absolute_uri(reverse("join")))
            messages.success(request, message)
            return redirect("person", username)
        except Problem as refused:
            problem = refused
    user.refresh_from_db()
    typed = request.POST if problem else None
    context = _standing(rights, user) | {
        "manages": True,
        "role": role_of(user),
        "roles": ROLES,
        "groups": Group.objects.exclude(name__in=ROLES).order_by("name"),
        "in_groups": groups_besides_role(user),
        "place": passwords.place(user),
        "by_directory": accounts.by_directory(user),
        "allowance": granting.of(user),
        "fields": limits.fields(granting.of(user), typed if typed and typed.get("do") == "allowance" else None),
        "fair": typed if typed and typed.get("do") == "shares" else limits.shares_fields(user),
        "share_groups": shares.groups_with_shares(user),
        "tokens": Token.objects.filter(user=user).count(),
        "membership": memberships.of(user),
        "now": timezone.now(),
        "problem": problem,
        "typed": typed or {},
        "did": request.POST.get("do", ""),
    }
    return show(request, "people/person.html", context, status=problem.status if problem else 200)


def _standing(rights: Rights, user: User) -> dict[str, Any]:
    """What somebody has and used, as far as whoever has these `rights` may know."""
    name, now = user.get_username(), timezone.now()
    week = reports.report(now - reports.WEEK, now, "user", name).total.as_dict()
    own = rights.user == user
    context: dict[str, Any] = {
        "who": user,
        "page": table.page(rights.user, QueryDict(urlencode({"owner": name}))),
        "week": week,
        "standing": fairness.latest(person=name).last(),
        "may_stop": rights.may(Deed.STEER_ALL) or (own and rights.may(Deed.LAUNCH)),
    }
    if own or rights.may(Deed.MANAGE):
        context["limits"] = limits.in_force(user, limits.usage(user, week["vram_gib_hours"]))
        context["roots"] = mounts.roots_of(name)
    return context


@managed
def group(request: HttpRequest, name: str) -> HttpResponse:
    """A group. POST changes it (`do`: add, remove, delete, shares, allowance or no-allowance)."""
    found = Group.objects.filter(name=name).first()
    if found is None:
        raise Http404
    actor, problem = person(request), None
    if request.method == "POST":
        try:
            match request.POST.get("do"):
                case "delete":
                    groups.delete(actor, found)
                    messages.success(request, f"The group {name} is deleted. Its members stay.")
                    return redirect("people")
                case "add" | "remove" as do:
                    names = request.POST.get("names", "").replace(",", " ").split()
                    groups.change_members(actor, found, {do: names})
                    messages.success(request, f"{', '.join(names)}: {'added' if do == 'add' else 'removed'}.")
                case "shares":
                    shares.change_group(
                        actor, found, {"shares": limits.number(request.POST.get("shares", ""), "shares")}
                    )
                    messages.success(request, "The shares are saved.")
                case _:
                    messages.success(request, _do_allowance(actor, found, request.POST))
            return redirect("group", name)
        except Problem as refused:
            problem = refused
    typed = request.POST if problem else None
    context = {
        "group": found,
        "is_role": is_role(found),
        "members": _by_role()[found.name] if is_role(found) else groups.members_of(found),
        "shares": shares.of_group(found),
        "allowance": granting.of(found),
        "fields": limits.fields(granting.of(found), typed if typed and typed.get("do") == "allowance" else None),
        "problem": problem,
        "typed": typed or {},
        "did": request.POST.get("do", ""),
    }
    return show(request, "people/group.html", context, status=problem.status if problem else 200)


def _do(actor: User, user: User, form: QueryDict, link: str) -> str:
    """What the form asks for; what was done, as a sentence. Raises Problem, or Http404 for what no form asks.

    `link`: where invitations lead.
    """
    name = user.get_username()
    match form.get("do"):
        case "account":
            accounts.change(actor, user, {"role": form.get("role", ""), "email": form.get("email", "").strip(),
                                          "groups": form.getlist("groups")})  # fmt: skip
            return f"{name}: changed."
        case "active":
            active = form.get("active") == "yes"
            accounts.change(actor, user, {"active": active})
            return f"{name} is {'enabled' if active else 'disabled'}."
        case "password":
            accounts.change(actor, user, {"password": form.get("password", "")})
            return f"{name} has the new password. Earlier sessions have ended."
        case "shares":
            shares.change(actor, user, limits.asked_shares(form))
            return "The shares are saved."
        case "invite":
            key = memberships.renew(actor, user)
            return f"Send this link. It is shown once and works for seven days: {link}#{key}"
        case "take-back":
            memberships.take_back(actor, user)
            return "The invitation is withdrawn: its link no longer works."
        case "end":
            memberships.set_end(actor, user, ends_at := _end_of(form))
            return f"The account ends on {localtime(ends_at):%Y-%m-%d %H:%M}." if ends_at else "The account has no end."
        case "forgive":
            shares.change(actor, user, {"forgive": True})
            return f"The usage of {name} is set to zero."
    return _do_allowance(actor, user, form)


def _do_allowance(actor: User, subject: User | Group, form: QueryDict) -> str:
    match form.get("do"):
        case "allowance":
            granting.grant(actor, subject, limits.asked(form))
            return "The allowance is saved."
        case "no-allowance":
            granting.withdraw(actor, subject)
            return "The allowance is removed."
    raise Http404


def _make_person(request: HttpRequest) -> dict[str, str]:
    """The new account's name, and what is shown once: the link of an invitation, or a password that was made up."""
    actor, form = person(request), request.POST
    allowance = {"gpu_memory": limits.size_of(form)} if form.get("gpu_memory", "").strip() else {}
    ends_at = _end_of(form)
    if form.get("sign_in") == "invite":
        user, key = memberships.invite(actor, _new_person(form), allowance, ends_at)
        return {"username": user.get_username(), "link": f"{request.build_absolute_uri(reverse('join'))}#{key}"}
    memberships.require_future(ends_at)
    with transaction.atomic():
        user, password = accounts.create(actor, _new_person(form))
        if allowance:
            granting.grant(actor, user, allowance)
        if ends_at is not None:
            memberships.set_end(actor, user, ends_at)
    return {"username": user.get_username()} | ({"password": password} if password else {})


def _end_of(form: QueryDict) -> datetime | None:
    """The end of the day that was typed. Raises Problem."""
    if not (text := form.get("ends_at", "").strip()):
        return None
    try:
        return periods.local(text) + (timedelta() if " " in text or "T" in text else timedelta(days=1))
    except ValueError as error:
        raise invalid(str(error), "ends_at") from None


def _new_person(form: QueryDict) -> dict[str, Any]:
    asked: dict[str, Any] = {name: form.get(name, "").strip() for name in ("username", "role", "email")}
    match form.get("sign_in"):
        case "given":
            asked["password"] = form.get("password", "")
        case "elsewhere":
            asked["password"] = None
    return asked


def _rows(users: list[User]) -> list[dict[str, Any]]:
    """Of a page of people, with three queries for all of them."""
    live = Container.objects.live().filter(owner__in=users)
    counts = dict(live.values_list("owner").annotate(Count("pk")))
    held = dict(Claim.objects.filter(container__in=live).values_list("container__owner").annotate(Sum("quota")))
    return [
        {
            "who": user,
            "role": _role(user).group,
            "groups": groups_besides_role(user),
            "invited": memberships.open_until(user),
            "containers": counts.get(user.pk, 0),
            "held": held.get(user.pk, 0),
        }
        for user in users
    ]


def _groups() -> list[Any]:
    """With their members; of a role whoever has it, also as a superuser or by default."""
    found = list(
        Group.objects.annotate(members=Count("user")).select_related("allowance", "fair").order_by("name")[:MOST_GROUPS]
    )
    by_role = _by_role()
    for group in found:
        if is_role(group):
            group.members = len(by_role[group.name])
    return found


def _by_role() -> dict[str, list[str]]:
    """The names of active people by the group of their role, which may be theirs as a superuser or by default."""
    found: dict[str, list[str]] = defaultdict(list)
    for user in User.objects.filter(is_active=True).prefetch_related("groups").order_by("username"):
        found[_role(user).group].append(user.username)
    return found


def _role(user: User) -> Role:
    return role_held(user, [group.name for group in user.groups.all()])

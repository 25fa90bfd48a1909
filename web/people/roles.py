"""Who may see and do what: four roles, each including the one before, and ownership. REST, pages and consoles ask here.

viewer looks (everything but the audit log, and other people's output, command lines and environments); user launches,
and steers what is theirs; operator steers everybody's containers and the queue; admin sets the policy and how GPUs are
shared, manages nodes, people and notifications, and reads the audit log. Whoever may steer a container may
also read its output, command line and environment, type into it, and warn its owner. A role is the Django group of that
name; a superuser is an admin; somebody in none of the groups has GPUSHARE_DEFAULT_ROLE.

Beside the roles there is one right for programs, the group `launches-for-others`: a service such as JupyterHub may say
for whom it launches. That person is the owner, under their own allowance; the service steers what it launched so, and
nothing else of anybody.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.db.models import Exists, OuterRef, Q, QuerySet

from web.errors import Problem, forbidden
from web.models import AppGuest, Command, Container, Node

FOR_OTHERS = "launches-for-others"


class Role(IntEnum):
    VIEWER = 1
    USER = 2
    OPERATOR = 3
    ADMIN = 4

    @property
    def group(self) -> str:
        """The name of its Django group."""
        return self.name.lower()


def is_role(group: Group | None) -> bool:
    return group is not None and group.name in {role.group for role in Role}


def role_of(user: User) -> Role:
    return role_held(user, () if user.is_superuser else _groups(user))


def _groups(user: User) -> set[str]:
    return set(user.groups.values_list("name", flat=True))


def role_held(user: User, groups: Iterable[str]) -> Role:
    """The role of somebody whose groups are known: for lists of people."""
    if user.is_superuser:
        return Role.ADMIN
    names = set(groups)
    held = [role for role in Role if role.group in names]
    return max(held, default=Role[settings.GPUSHARE_DEFAULT_ROLE.upper()])


def admins() -> QuerySet[User]:
    """Everybody who may manage people now."""
    return _holding(NEEDS[Deed.MANAGE])


def steering_all() -> QuerySet[User]:
    """Everybody who may steer other people's containers now."""
    return _holding(NEEDS[Deed.STEER_ALL])


def _holding(role: Role) -> QuerySet[User]:
    """Those who are active and have this role, or a higher one."""
    enough = [each.group for each in Role if each >= role]
    in_a_role = Group.objects.filter(user=OuterRef("pk"), name__in=[role.group for role in Role])
    by_group = Exists(Group.objects.filter(user=OuterRef("pk"), name__in=enough))
    by_default = ~Exists(in_a_role) if settings.GPUSHARE_DEFAULT_ROLE in enough else Q(pk__in=[])
    return get_user_model().objects.filter(Q(is_superuser=True) | by_group | by_default, is_active=True)


def groups_of(user: User) -> QuerySet[Group]:
    """The user's groups, and that of the role which `role_of` gives without membership. Made for use in a subquery."""
    if user.is_superuser:
        return Group.objects.filter(Q(user=user) | Q(name=Role.ADMIN.group)).distinct()
    in_a_role = Group.objects.filter(user=user, name__in=[role.group for role in Role])
    by_default = Q(~Exists(in_a_role), name=settings.GPUSHARE_DEFAULT_ROLE)
    return Group.objects.filter(Q(user=user) | by_default).distinct()


def groups_besides_role(user: User) -> list[str]:
    """The names of the user's groups that are no role."""
    return [group.name for group in user.groups.all() if not is_role(group)]


class Deed(Enum):
    """What takes a role. Each ends the sentence: "only an operator may …"."""

    LAUNCH = "launch containers"
    EXEC = "start programs in containers that run"
    STEER_ALL = "steer other people's containers"
    ORDER_QUEUE = "reorder the queue"
    SET_POLICY = "set the policy"
    SET_COMPUTE = "set how containers share a GPU"
    MANAGE_NODES = "invite, drain, label and remove nodes"
    PRESETS = "write presets"
    READ_AUDIT = "read the audit log"
    NOTIFY = "manage notifications"
    ANNOUNCE = "announce maintenance"
    MANAGE = "manage people"


NEEDS: Mapping[Deed, Role] = {
    Deed.LAUNCH: Role.USER,
    Deed.EXEC: Role[settings.GPUSHARE_EXEC.upper()],
    Deed.STEER_ALL: Role.OPERATOR,
    Deed.ORDER_QUEUE: Role.OPERATOR,
    Deed.SET_POLICY: Role.ADMIN,
    Deed.SET_COMPUTE: Role.ADMIN,
    Deed.MANAGE_NODES: Role.ADMIN,
    Deed.PRESETS: Role.ADMIN,
    Deed.READ_AUDIT: Role.ADMIN,
    Deed.NOTIFY: Role.ADMIN,
    Deed.ANNOUNCE: Role.ADMIN,
    Deed.MANAGE: Role.ADMIN,
}


@dataclass(frozen=True, slots=True)
class Rights:
    """One person's, with the role looked up once: for pages and lists that ask about many things.

    `serves`: it is a service that may launch for others.
    """

    user: User
    role: Role
    serves: bool = False

    def may(self, deed: Deed) -> bool:
        return self.role >= NEEDS[deed]

    def steers(self, container: Container) -> bool:
        """What is their own, or was launched by them for others, if they may launch at all; or everybody's."""
        return bool(self.steered({container.pk: container.owner_id}))

    def steered(self, owners: Mapping[UUID, int | None]) -> set[UUID]:
        """Which of these containers, of these owners, `steers` allows."""
        if self.may(Deed.STEER_ALL):
            return set(owners)
        if not self.may(Deed.LAUNCH):
            return set()
        own = {key for key, owner in owners.items() if owner == self.user.pk}
        if self.serves and (others := owners.keys() - own):
            launches = Command.objects.filter(kind=Command.Kind.LAUNCH, issued_by=self.user, container__in=others)
            own |= set(launches.values_list("container", flat=True))
        return own

    def commands(self) -> QuerySet[Command]:
        """The commands that they may look at: their own, or everybody's. A forecast is a question, and no command."""
        found = Command.objects.exclude(kind=Command.Kind.FORECAST)
        return found if self.may(Deed.STEER_ALL) else found.filter(issued_by=self.user)


def rights_of(user: User) -> Rights:
    names = _groups(user)
    return Rights(user, role_held(user, names), FOR_OTHERS in names)


class Managers:
    """Django asks this what somebody may in the admin site: all, or nothing. As a backend it knows nobody."""

    def authenticate(self, request: Any, **credentials: Any) -> None:
        return None

    def has_perm(self, user: Any, permission: str, about: Any = None) -> bool:
        return manages(user)

    def has_module_perms(self, user: Any, app: str) -> bool:
        return manages(user)


def manages(user: Any) -> bool:
    """Whether they may enter the admin site, and do there whatever can be done; Django's own marks are not asked."""
    return bool(user.is_active and rights_of(user).may(Deed.MANAGE))


def require(user: User, deed: Deed) -> None:
    """Refuses unless the user's role allows it."""
    if not rights_of(user).may(deed):
        role = NEEDS[deed].group
        article = "an" if role[0] in "aeio" else "a"
        raise forbidden(f"Only {article} {role} may {deed.value}.")


def owner_of_launch(user: User, name: str) -> User:
    """Whose a launch is that this user asks for: their own, or by name somebody else's. Raises Problem."""
    require(user, Deed.LAUNCH)
    if not name or name == user.get_username():
        return user
    if not rights_of(user).serves:
        raise forbidden(f"You may not launch for others: an admin allows it with the group {FOR_OTHERS}.", "owner")
    return account_that_launches(name)


def account_that_launches(name: str) -> User:
    """The account of this name, for whom somebody else asks for a container. Raises Problem."""
    people = get_user_model().objects.defer("password", "email", "last_login")  # a node's scheduler may not read them
    owner = people.filter(username=name, is_active=True).first()
    if owner is None:
        raise Problem(
            "unknown_user",
            f'There is no active account "{name[:64]}" here: they have to sign in once, or an admin makes the account.',
            400, "owner",
        )  # fmt: skip
    if not rights_of(owner).may(Deed.LAUNCH):
        raise forbidden(f'"{name}" may not launch containers here: an admin gives them the role for it.', "owner")
    return owner


def outdated(node: Node | None, rights: Rights) -> list[str]:
    """What of a host's engine has known holes is its admins' business."""
    return node.outdated if node and rights.may(Deed.MANAGE) else []


def steered_by(user: User) -> Callable[[Container], bool]:
    """Which containers the user may steer, with the role looked up once."""
    return rights_of(user).steers


def may_steer(user: User, container: Container) -> bool:
    return rights_of(user).steers(container)


def require_steering(user: User, container: Container, deed: str) -> None:
    """Refuses unless the container is the user's own, or the user is an operator."""
    if not may_steer(user, container):
        raise forbidden(f'You may not {deed} "{container.name}": it belongs to {container.owner.get_username()}.')


def port_of(container: Container) -> int:
    """Of its application; 0: it was launched without one."""
    return int(container.app.partition("/")[0] or 0)


def may_open(rights: Rights, container: Container, port: int) -> bool:
    """Whether they may steer it, or are a guest and this is the port of its application."""
    if rights.steers(container):
        return True
    return port == port_of(container) and AppGuest.objects.filter(container=container, user=rights.user).exists()


def require_opening(user: User, container: Container, port: int) -> None:
    """Refuses unless they may connect to this port of it."""
    if not may_open(rights_of(user), container, port):
        require_steering(user, container, f"open port {port} of" if port else "connect to a port of")

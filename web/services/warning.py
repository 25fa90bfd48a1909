"""A warning to an owner that what they hold lies idle: an entry of the audit log, shown on their pages for a day."""

from datetime import timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from web import audit
from web.models import AuditEntry, Container, large
from web.people.roles import require_steering

ACTION = "warn"
STAYS = timedelta(days=1)


def warn(user: User, container: Container) -> None:
    """Warns the owner. Problem if this user may not steer the container."""
    require_steering(user, container, "warn about")
    tell_owner(user.get_username(), container)


def tell_owner(by: str, container: Container) -> None:
    """`by` is a user name, or "gpushare" where the scheduler found it idle by itself."""
    audit.record(by, ACTION, container.pk, name=container.name, owner=container.owner.get_username())


def warned(user: User) -> list[Container]:
    """This person's live containers that somebody warned about lately, the first warned about first."""
    lately = AuditEntry.objects.filter(action=ACTION, at__gte=timezone.now() - STAYS, seal__node="")  # no node's own
    if not (subjects := dict.fromkeys(lately.values_list("subject", flat=True))):  # as on most days; every page asks
        return []
    about = {str(made.pk): made for made in Container.objects.live().filter(owner=user).defer(*large())}
    return [about[subject] for subject in subjects if subject in about]

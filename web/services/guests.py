"""Sharing an application: who may open it beside its owner. A guest reaches that one port, and nothing else of it."""

from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction

from web import audit
from web.errors import conflict, invalid
from web.models import AppGuest, Container
from web.people.roles import port_of, require_steering
from web.spec.people import GuestsSpec


def names(container: Container) -> list[str]:
    return list(container.guests.order_by("user__username").values_list("user__username", flat=True))


def invite(user: User, container: Container, asked: Any) -> list[str]:
    """These are its guests from now on; whoever is none any more is cut off within seconds. Raises Problem."""
    require_steering(user, container, "share")
    wanted = set(GuestsSpec.parse(asked)["guests"])
    if container.finished_at:
        raise conflict(f'"{container.name}" has ended.', code="container_ended")
    if wanted and not port_of(container):
        raise conflict(f'"{container.name}" was launched without "app": which port would guests open?', code="no_app")
    people = {
        each.get_username(): each for each in get_user_model().objects.filter(username__in=wanted, is_active=True)
    }
    if unknown := sorted(wanted - people.keys()):
        raise invalid(f'There is no active account "{unknown[0]}" here.', "guests", code="unknown_user")
    with transaction.atomic():
        Container.objects.select_for_update().get(pk=container.pk)
        before = set(names(container))
        container.guests.filter(user__username__in=before - wanted).delete()
        AppGuest.objects.bulk_create(AppGuest(container=container, user=people[name]) for name in wanted - before)
        if before != wanted:
            detail = {"name": container.name, "added": sorted(wanted - before), "removed": sorted(before - wanted)}
            audit.record(user.get_username(), "app-shared", container.pk, **detail)
    return sorted(wanted)

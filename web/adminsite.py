"""The admin site, where each change is recorded: who, what, before and after, however it was made.

Django's own record is of forms: a deletion of many rows at once tells nobody, nor does it say what was there before. So
the rows themselves are watched (`watch`) while a request of the admin site is under way: forms, lists, actions, inlines
and what goes along with a deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.db import DataError
from django.db.models import Model
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_save
from django.db.transaction import atomic
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from web.errors import Problem

_by: ContextVar[str | None] = ContextVar("gpushare_admin", default=None)

SECRET = {"password", "digest"}  # that they changed is told, not to what
DONE = {"post_add": "added", "post_remove": "removed"}


class Config(AdminConfig):
    default_site = "web.adminsite.Site"


class Site(AdminSite):
    def has_permission(self, request: HttpRequest) -> bool:
        from web.people.roles import manages  # this module is read before there are models

        return manages(request.user)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def watched(request: HttpRequest, *arguments: Any, **words: Any) -> HttpResponseBase:
            from web.people.accounts import administered

            changes = request.method == "POST" and self.has_permission(request)
            with _changing(request.user.get_username()):
                try:
                    # What PostgreSQL refuses ends a transaction.
                    with administered() if changes else atomic() if request.GET else nullcontext():
                        return inner(request, *arguments, **words)  # type: ignore[no-any-return]
                except Problem as problem:
                    list(messages.get_messages(request))  # what is undone was not done
                    messages.error(request, problem.message)
                    return redirect(request.path)
                except (ValueError, OverflowError, DataError) as error:
                    # Django takes any number for a year, and finds out in the database's language that there is none.
                    if request.method != "GET" or not request.GET:
                        raise
                    messages.error(request, f"The list cannot be asked this ({error}); here is all of it.")
                    return redirect(request.path)

        return watched


@contextmanager
def _changing(by: str) -> Iterator[None]:
    token = _by.set(by)
    try:
        yield
    finally:
        _by.reset(token)


def watch(*models: type[Model]) -> None:
    """From now on, what the admin site does to rows of these, and to the groups and permissions of them, is told."""
    for model in models:
        pre_save.connect(_remember, model)
        post_save.connect(_saved, model)
        post_delete.connect(_deleted, model)
        for field in model._meta.many_to_many:
            m2m_changed.connect(_related, getattr(model, field.name).through)


def _only_in_admin(receiver: Callable[..., None]) -> Callable[..., None]:
    @wraps(receiver)
    def called(**signal: Any) -> None:
        if _by.get() is not None:
            receiver(**signal)

    return called


@_only_in_admin
def _remember(instance: Model, **_: Any) -> None:
    row = type(instance)._default_manager.filter(pk=instance.pk).first() if instance.pk else None
    instance._before = _told(row) if row else {}  # type: ignore[attr-defined]


@_only_in_admin
def _saved(instance: Model, created: bool, **_: Any) -> None:
    before, after = instance.__dict__.pop("_before", {}), _told(type(instance)._default_manager.get(pk=instance.pk))
    changed = [name for name in after if before.get(name) != after[name]]
    if changed:
        _record(
            instance,
            "added" if created else "changed",
            before={name: _shown(name, before[name]) for name in changed if name in before},
            after={name: _shown(name, after[name]) for name in changed},
        )


@_only_in_admin
def _deleted(instance: Model, **_: Any) -> None:
    _record(instance, "deleted", before={name: _shown(name, value) for name, value in _told(instance).items()})


@_only_in_admin
def _related(instance: Model, action: str, model: type[Model], pk_set: set[Any] | None, **_: Any) -> None:
    if action in DONE and pk_set:
        names = sorted(map(str, model._default_manager.filter(pk__in=pk_set)))
        _record(instance, f"{model._meta.verbose_name_plural} {DONE[action]}", which=names)


def _told(row: Model) -> dict[str, Any]:
    """The row's columns, as JSON can tell them."""
    values = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
    # -0.0 is 0.0: PostgreSQL's jsonb keeps no sign of a zero, and the audit log would look changed.
    values = {name: value + 0.0 if isinstance(value, float) else value for name, value in values.items()}
    plain = (bool, int, float, str, list, dict, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}


def _shown(name: str, value: Any) -> Any:
    return "…" if name in SECRET and value else value


def _record(instance: Model, did: str, **detail: Any) -> None:
    from web import audit

    audit.record(_by.get() or "", str(instance._meta.model_name), instance, did=did, **detail)

"""The admin site: a window on the rows of the database. It changes nothing.

People, groups, allowances and tokens are changed on our pages, by REST and by the command line, where one set of rules
holds and every change is recorded.
"""

from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.db import DataError
from django.db.transaction import atomic
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect


class Config(AdminConfig):
    default_site = "web.adminsite.Site"


class Site(AdminSite):
    def has_permission(self, request: HttpRequest) -> bool:
        from web.people.roles import manages  # this module is read before there are models

        return manages(request.user)

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Where everybody changes their own password."""
        return redirect("me")

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def answered(request: HttpRequest, *arguments: Any, **words: Any) -> HttpResponseBase:
            """Django takes any number for a year, and finds out in the database's language that there is none."""
            if not request.GET:
                return inner(request, *arguments, **words)  # type: ignore[no-any-return]
            try:
                with atomic():  # what PostgreSQL refuses ends a transaction
                    return inner(request, *arguments, **words)  # type: ignore[no-any-return]
            except (ValueError, OverflowError, DataError) as error:
                messages.error(request, f"This filter is invalid ({error}). All rows are shown.")
                return redirect(request.path)

        return answered

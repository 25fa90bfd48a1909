"""What the admin site shows; nothing can be added, changed or deleted there (web/adminsite.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest

from web.models import AllocationEvent, Allowance, AuditEntry, Claim, Command, Container, Gpu, Node, Token
from web.people.signin import SignInForm

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin = admin.ModelAdmin
    TabularInline = admin.TabularInline

admin.site.site_header = admin.site.site_title = "gpushare"
admin.site.login_form = SignInForm
admin.site.unregister([User, Group])


class ShownOnly:
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.site.has_permission(request)


@admin.register(User)
class PersonAdmin(ShownOnly, ModelAdmin):
    list_display = ["username", "email", "is_active", "date_joined", "last_login"]
    list_filter = ["is_active", "groups"]
    search_fields = ["username", "email"]
    exclude = ["password"]


@admin.register(Group)
class GroupAdmin(ShownOnly, ModelAdmin):
    search_fields = ["name"]


class ClaimInline(ShownOnly, TabularInline):
    model = Claim


@admin.register(Node)
class NodeAdmin(ShownOnly, ModelAdmin):
    list_display = ["name", "engine", "policy", "driver", "seen_at"]


@admin.register(Gpu)
class GpuAdmin(ShownOnly, ModelAdmin):
    list_display = ["index", "name", "uuid", "present", "capacity", "real", "foreign", "compute"]


@admin.register(Container)
class ContainerAdmin(ShownOnly, ModelAdmin):
    list_display = ["name", "state", "owner", "image", "created_at", "finished_at"]
    list_select_related = ["owner"]
    list_filter = ["engine", "created_at"]
    search_fields = ["name", "image", "owner__username"]
    exclude = ["environment"]  # its values may be secrets
    inlines = [ClaimInline]


@admin.register(Command)
class CommandAdmin(ShownOnly, ModelAdmin):
    list_display = ["created_at", "kind", "container", "issued_by", "outcome", "message"]
    list_select_related = ["container", "issued_by"]
    list_filter = ["kind", "outcome"]


@admin.register(AllocationEvent)
class AllocationEventAdmin(ShownOnly, ModelAdmin):
    list_display = ["at", "kind", "container", "gpu", "bytes", "used_after", "waited", "detail"]
    list_select_related = ["container", "gpu"]
    list_filter = ["kind"]
    show_full_result_count = False


@admin.register(AuditEntry)
class AuditEntryAdmin(ShownOnly, ModelAdmin):
    list_display = ["at", "actor", "action", "subject", "address"]
    list_filter = ["action"]
    search_fields = ["actor", "subject"]


@admin.register(Token)
class TokenAdmin(ShownOnly, ModelAdmin):
    list_display = ["user", "name", "scope", "created_at", "expires_at", "last_used_at"]
    list_select_related = ["user"]
    exclude = ["digest"]


@admin.register(Allowance)
class AllowanceAdmin(ShownOnly, ModelAdmin):
    list_display = [
        "__str__", "gpu_memory", "containers", "gib_hours", "priority_lowest", "priority_highest", "compute_weight",
        "compute_limit",
    ]  # fmt: skip

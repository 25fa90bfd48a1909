"""The admin site: people, groups, allowances and tokens are edited here; what was observed is only shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth import admin as auth_admin
from django.contrib.auth import forms as auth_forms
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import QuerySet
from django.db.models.signals import post_save
from django.dispatch import receiver
from django.http import HttpRequest

from web import audit
from web.adminsite import watch
from web.errors import Problem, invalid
from web.models import AllocationEvent, Allowance, AuditEntry, Claim, Command, Container, Gpu, Node, Token
from web.people import accounts, granting, groups
from web.people.signin import SignInForm
from web.spec.people import AllowanceSpec

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
    ModelForm = forms.ModelForm[Any]
    UserAdmin = auth_admin.UserAdmin[User]
    UserCreationForm = auth_forms.AdminUserCreationForm[User]
    UserChangeForm = auth_forms.UserChangeForm[User]
else:
    ModelAdmin = admin.ModelAdmin
    TabularInline = admin.TabularInline
    ModelForm = forms.ModelForm
    UserAdmin = auth_admin.UserAdmin
    UserCreationForm = auth_forms.AdminUserCreationForm
    UserChangeForm = auth_forms.UserChangeForm

admin.site.site_header = admin.site.site_title = "gpushare"
admin.site.login_form = SignInForm


@contextmanager
def _told_beside_its_field() -> Iterator[None]:
    """In a form: what web/people/ refuses is told where it was typed."""
    try:
        yield
    except Problem as problem:
        raise ValidationError(problem.message) from None


class Named(ModelForm):
    """A form of a person, whose name is held to accounts.py if it is changed."""

    def clean_username(self) -> str:
        name = str(self.cleaned_data["username"])
        with _told_beside_its_field():
            if name != self.initial.get("username"):
                if fault := accounts.fault_of_name(name):
                    raise invalid(fault)
                accounts.require_free(name, besides=self.instance)
        return name


class NewPersonForm(Named, UserCreationForm):
    pass


class PersonForm(Named, UserChangeForm):
    pass


class GroupForm(ModelForm):
    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        with _told_beside_its_field():
            if name != self.initial.get("name"):
                if self.instance.pk:
                    groups.require_no_role(self.instance)
                    groups.require_no_role(Group(name=name))  # its members would have that role
                groups.require_name(name, besides=self.instance)
        return name


admin.site.unregister([User, Group])


@admin.register(User)
class PersonAdmin(UserAdmin):
    form = PersonForm
    add_form = NewPersonForm


@admin.register(Group)
class GroupAdmin(auth_admin.GroupAdmin):
    form = GroupForm

    def delete_model(self, request: HttpRequest, obj: Group) -> None:
        groups.require_no_role(obj)
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Group]) -> None:
        for group in queryset:
            groups.require_no_role(group)
        super().delete_queryset(request, queryset)


class ShownOnly:
    """Nothing can be added, changed or deleted: desired state goes through the services, the rest is observed."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


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
class TokenAdmin(ModelAdmin):
    """Tokens can be ended here; they are made by their owners, who alone see the key."""

    list_display = ["user", "name", "scope", "created_at", "expires_at", "last_used_at"]
    list_select_related = ["user"]
    readonly_fields = ["user", "created_at", "last_used_at"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


class Texts(forms.JSONField):
    """JSON in a form that can be shown again whatever was typed, half of a surrogate pair included."""

    def prepare_value(self, value: Any) -> Any:
        shown = super().prepare_value(value)
        return shown.encode("utf-8", "backslashreplace").decode() if isinstance(shown, str) else shown


class AllowanceForm(ModelForm):
    def _post_clean(self) -> None:
        """After the model's own rules, as in granting.py. What is not changed stays, as it does over REST."""
        super()._post_clean()  # type: ignore[misc]  # the stubs leave it out
        named = [name for name in self.changed_data if name in granting.FIELDS]
        if self.errors:
            return
        try:
            spec = AllowanceSpec.parse({name: self.cleaned_data[name] for name in named})
            if spec.get("gpus"):
                spec["gpus"] = granting.cards(spec["gpus"], stored=self.initial.get("gpus") or [])
        except Problem as problem:
            self.add_error(problem.field if problem.field in named else None, problem.message)
            return
        for name, value in spec.items():
            setattr(self.instance, name, value)


@admin.register(Allowance)
class AllowanceAdmin(ModelAdmin):
    form = AllowanceForm
    formfield_overrides = {models.JSONField: {"form_class": Texts}}
    list_display = [
        "__str__", "gpu_memory", "containers", "gib_hours", "priority_lowest", "priority_highest", "compute_weight",
        "compute_weights", "compute_limit",
    ]  # fmt: skip


@receiver(post_save, sender=LogEntry)
def record_what_admins_do(instance: LogEntry, created: bool, **_: Any) -> None:
    """What Django tells of a form is in the audit log too; what became of the rows is by adminsite.py."""
    if created:
        kind = f"{instance.content_type}: " if instance.content_type else ""
        audit.record(
            instance.user.get_username(),
            {ADDITION: "admin-added", CHANGE: "admin-changed", DELETION: "admin-deleted"}[instance.action_flag],
            f"{kind}{instance.object_repr}",
            what=instance.get_change_message(),
        )


watch(User, Group, Allowance, Token)

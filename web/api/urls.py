"""/api/v1/ (docs/rest.md)."""

from django.urls import include, path, re_path
from rest_framework.routers import SimpleRouter

from web.api import (
    allocations,
    attention,
    audit,
    booked,
    containers,
    gpus,
    me,
    nodes,
    notifying,
    planned,
    presets,
    queue,
    reports,
)
from web.api.people import groups, people, shares, ssh, tokens
from web.api.protocol import errors, schema

router = SimpleRouter(use_regex_path=False)
router.register("containers", containers.Containers, basename="container")
router.register("commands", containers.Commands, basename="command")
router.register("planned", planned.PlannedLaunches, basename="planned")
router.register("tokens", tokens.Tokens, basename="token")
router.register("announcements", booked.Announcements, basename="announcement")
router.register("presets", presets.Presets, basename="preset")
router.register("ssh-keys", ssh.SshKeys, basename="ssh-key")
router.register("reservations", booked.Reservations, basename="reservation")
router.register("notifying/receivers", notifying.Receivers, basename="receiver")
router.register("notifying/rules", notifying.Rules, basename="rule")
router.register("notifying/silences", notifying.Silences, basename="silence")

urlpatterns = [
    path("", include(router.urls)),
    path("gpus/", gpus.Gpus.as_view(), name="gpus"),
    path("gpus/<str:uuid>/", gpus.OneGpu.as_view(), name="gpu"),
    path("gpus/<str:uuid>/drain/", gpus.DrainGpu.as_view(), name="drain-gpu"),
    path("gpus/<str:uuid>/undrain/", gpus.UndrainGpu.as_view(), name="undrain-gpu"),
    path("nodes/", nodes.Nodes.as_view(), name="nodes"),
    path("nodes/join/", nodes.Join.as_view(), name="node-join"),
    path("nodes/<str:name>/", nodes.OneNode.as_view(), name="node"),
    path("nodes/<str:name>/drain/", nodes.Drain.as_view(), name="drain-node"),
    path("nodes/<str:name>/undrain/", nodes.Undrain.as_view(), name="undrain-node"),
    path("queue/", queue.Queue.as_view(), name="queue"),
    path("policy/", queue.Policy.as_view(), name="policy"),
    path("forecast/", queue.Forecast.as_view(), name="forecast"),
    path("allocations/", allocations.Allocations.as_view(), name="allocations"),
    path("reports/allocations/", reports.AllocationReport.as_view(), name="report"),
    path("fairness/", reports.Fairness.as_view(), name="fairness-figures"),
    path("peaks/", reports.Peaks.as_view(), name="peaks"),
    path("attention/", attention.Attention.as_view(), name="attention"),
    path("audit/", audit.Audit.as_view(), name="audit-entries"),
    path("audit/verify/", audit.Verify.as_view(), name="audit-verify"),
    path("ssh/", ssh.Ssh.as_view(), name="ssh"),
    path("me/", me.Me.as_view(), name="my"),
    path("me/password/", me.Password.as_view(), name="my-password"),
    path("people/", people.People.as_view(), name="people-list"),
    path("people/<str:username>/", people.OnePerson.as_view(), name="person-detail"),
    path("people/<str:username>/allowance/", groups.PersonAllowance.as_view(), name="person-allowance"),
    path("people/<str:username>/shares/", shares.OfPerson.as_view(), name="person-shares"),
    path("groups/", groups.Groups.as_view(), name="group-list"),
    path("groups/<str:name>/", groups.OneGroup.as_view(), name="group-detail"),
    path("groups/<str:name>/members/", groups.Members.as_view(), name="group-members"),
    path("groups/<str:name>/allowance/", groups.GroupAllowance.as_view(), name="group-allowance"),
    path("groups/<str:name>/shares/", shares.OfGroup.as_view(), name="group-shares"),
    path("allowances/", groups.Allowances.as_view(), name="allowances"),
    path("me/notifications/", notifying.Notifications.as_view(), name="notifications"),
    path("me/calendar/", booked.CalendarAddress.as_view(), name="my-calendar"),
    path("me/notices/", notifying.Notices.as_view(), name="notices"),
    path("notifying/deliveries/", notifying.Deliveries.as_view(), name="deliveries"),
    path("sign-in/", tokens.SignIn.as_view(), name="sign-in"),
    path("schema/", schema.Schema.as_view(), name="schema"),
    path("docs/", schema.Docs.as_view(), name="docs"),
    re_path(r"^.*", errors.unknown_path),
]

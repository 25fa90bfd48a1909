"""/api/v1/ (DESIGN.md, part 8)."""

from django.urls import include, path, re_path
from rest_framework.routers import SimpleRouter

from web.api import containers, devices, errors, history, people, schema

router = SimpleRouter(use_regex_path=False)
router.register("containers", containers.Containers, basename="container")
router.register("commands", containers.Commands, basename="command")
router.register("tokens", people.Tokens, basename="token")

urlpatterns = [
    path("", include(router.urls)),
    path("gpus/", devices.Gpus.as_view(), name="gpus"),
    path("nodes/", devices.Nodes.as_view(), name="nodes"),
    path("queue/", devices.Queue.as_view(), name="queue"),
    path("policy/", devices.Policy.as_view(), name="policy"),
    path("forecast/", devices.Forecast.as_view(), name="forecast"),
    path("allocations/", history.Allocations.as_view(), name="allocations"),
    path("reports/allocations/", history.AllocationReport.as_view(), name="report"),
    path("peaks/", history.Peaks.as_view(), name="peaks"),
    path("audit/", history.Audit.as_view(), name="audit"),
    path("me/", people.Me.as_view(), name="me"),
    path("sign-in/", people.SignIn.as_view(), name="sign-in"),
    path("schema/", schema.Schema.as_view(), name="schema"),
    path("docs/", schema.Docs.as_view(), name="docs"),
    re_path(r"^.*", errors.unknown_path),
]

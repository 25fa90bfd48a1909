"""/api/v1/ (docs/rest.md)."""

from django.urls import include, path, re_path
from rest_framework.routers import SimpleRouter

from web.api import allocations, attention, audit, containers, gpus, me, nodes, queue, reports, tokens
from web.api.protocol import errors, schema

router = SimpleRouter(use_regex_path=False)
router.register("containers", containers.Containers, basename="container")
router.register("commands", containers.Commands, basename="command")
router.register("tokens", tokens.Tokens, basename="token")

urlpatterns = [
    path("", include(router.urls)),
    path("gpus/", gpus.Gpus.as_view(), name="gpus"),
    path("gpus/<str:uuid>/", gpus.OneGpu.as_view(), name="gpu"),
    path("nodes/", nodes.Nodes.as_view(), name="nodes"),
    path("queue/", queue.Queue.as_view(), name="queue"),
    path("policy/", queue.Policy.as_view(), name="policy"),
    path("forecast/", queue.Forecast.as_view(), name="forecast"),
    path("allocations/", allocations.Allocations.as_view(), name="allocations"),
    path("reports/allocations/", reports.AllocationReport.as_view(), name="report"),
    path("peaks/", reports.Peaks.as_view(), name="peaks"),
    path("attention/", attention.Attention.as_view(), name="attention"),
    path("audit/", audit.Audit.as_view(), name="audit"),
    path("me/", me.Me.as_view(), name="my"),
    path("me/password/", me.Password.as_view(), name="my-password"),
    path("sign-in/", tokens.SignIn.as_view(), name="sign-in"),
    path("schema/", schema.Schema.as_view(), name="schema"),
    path("docs/", schema.Docs.as_view(), name="docs"),
    re_path(r"^.*", errors.unknown_path),
]

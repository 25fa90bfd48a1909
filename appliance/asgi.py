"""What an ASGI server runs: static files, pages and REST through Django, WebSockets through Channels."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
django.setup(set_prefix=False)  # before anything that imports models

from channels.auth import AuthMiddlewareStack  # type: ignore[import-untyped]  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # type: ignore[import-untyped]  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # type: ignore[import-untyped]  # noqa: E402
from django.urls import path  # noqa: E402

from appliance.static import StaticFiles  # noqa: E402
from appliance.threads import Handler, Threads  # noqa: E402
from web.console.consumer import ConsoleConsumer  # noqa: E402
from web.http.middleware import SocketsRefuseBadText  # noqa: E402
from web.live.consumer import DashboardConsumer  # noqa: E402

sockets = [
    path("ws/dashboard/", DashboardConsumer.as_asgi()),
    path("ws/containers/<uuid:pk>/console/", ConsoleConsumer.as_asgi()),
]

application = ProtocolTypeRouter(
    {
        "http": StaticFiles(Threads(Handler())),
        "websocket": SocketsRefuseBadText(AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(sockets)))),
    }
)

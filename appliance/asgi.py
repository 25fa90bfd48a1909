"""What an ASGI server runs: static files, pages and REST through Django, WebSockets through Channels."""

import os
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
django.setup(set_prefix=False)  # before anything that imports models

from channels.auth import AuthMiddlewareStack  # type: ignore[import-untyped]  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # type: ignore[import-untyped]  # noqa: E402
from django.conf import settings  # noqa: E402
from django.urls import path  # noqa: E402
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware  # noqa: E402

from appliance.static import StaticFiles  # noqa: E402
from appliance.threads import Handler, Threads  # noqa: E402
from web.console.consumer import ConsoleConsumer, ExecConsumer  # noqa: E402
from web.console.ports import PortConsumer  # noqa: E402
from web.http.gate import Application, Gate, Receive, Send  # noqa: E402
from web.http.sockets import Sockets  # noqa: E402
from web.live.consumer import DashboardConsumer  # noqa: E402


async def link(*connection: Any) -> None:
    from web.relay.links import link  # asyncssh takes 20 MiB that one host alone does not need

    await link(*connection)


sockets = [
    path("ws/dashboard/", DashboardConsumer.as_asgi()),
    path("ws/containers/<uuid:pk>/console/", ConsoleConsumer.as_asgi()),
    path("ws/containers/<uuid:pk>/exec/", ExecConsumer.as_asgi()),
    path("ws/containers/<uuid:pk>/ports/<int:port>/", PortConsumer.as_asgi()),
    path("ws/nodes/<str:name>/", link),  # type: ignore[arg-type]  # ASGI's
]


class OverTls:
    """Everybody comes through a proxy that speaks TLS, whether it says so or not."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        scope["scheme"] = "wss" if scope["type"] == "websocket" else "https"
        await self._app(scope, receive, send)


application: Any = ProtocolTypeRouter(
    {
        "http": StaticFiles(Gate(Threads(Handler()))),
        "websocket": Sockets(AuthMiddlewareStack(URLRouter(sockets)), sockets),
    }
)
if settings.GPUSHARE_TLS:
    application = OverTls(application)
if settings.GPUSHARE_TRUSTED_PROXIES:
    application = ProxyHeadersMiddleware(application, trusted_hosts=settings.GPUSHARE_TRUSTED_PROXIES)

"""The web server: uvicorn, with our doors before it (appliance/running/doors.py)."""

import errno
import socket
import sys

import uvicorn
from django.conf import settings
from django.core.management import CommandError

from appliance.asgi import application
from appliance.running.doors import Doors, HttpProtocol, WebSocketProtocol
from web.console.frames import PAYLOAD_LIMIT
from web.notifying.loop import Notifier

BACKLOG = 2048
# Seconds that a thread which reads for somebody may hold the interpreter while the loop has to go on. Each send to one
# of fifty open pages gives it away: with Python's usual 5 ms, who reads meanwhile holds up the last of them for 250 ms.
LOOP_WAITS = 0.0005
AT_ONCE = 64  # connections that are taken before anything else happens, as many descriptors


def listen(host: str, port: int) -> socket.socket:
    """Binds before anything else starts, so that a taken port costs nothing. Port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. asyncio would not set it on them, and then every answer waits 40 ms for a delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CommandError(f"Cannot listen on {host}:{port} ({error.strerror}). {_instead(error)}") from error
    return listener


def _instead(error: OSError) -> str:
    """What to do."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "HOST has to be an address of this host, or its name: 127.0.0.1 for itself alone, 0.0.0.0 for all."
    if error.errno == errno.EACCES:
        return "Ports below 1024 need root. Choose another port: PORT=8001 make up"
    return (
        "Is the appliance running already? Then open it in a browser. Else choose another port: PORT=8001 make up "
        "(a second appliance needs a folder of its own, too: GPUSHARE_HOME)"
    )


def answer(listener: socket.socket) -> None:
    """The web side: answers who connects, until SIGTERM or SIGINT."""
    sys.setswitchinterval(LOOP_WAITS)
    HttpProtocol.doors = Doors(settings.GPUSHARE_TRUSTED_PROXIES)
    config = uvicorn.Config(
        application,
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=1 + PAYLOAD_LIMIT,  # bytes: a console's largest frame; the dashboard's own are a few words
        backlog=AT_ONCE,
        lifespan="off",
        proxy_headers=False,  # it would believe whoever is on this host; appliance/asgi.py asks the settings
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    with Notifier().running():
        Server(config).run(sockets=[listener])


class Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)  # asyncio made it as short as what it takes at once

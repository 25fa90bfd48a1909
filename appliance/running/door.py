"""The door: ssh (web/door/server.py) and applications in the browser (apps.py), where people come into containers."""

import asyncio
import signal
import socket
from contextlib import AsyncExitStack

from django.conf import settings

from appliance.running.listening import BACKLOG, listen


def listeners() -> tuple[socket.socket | None, socket.socket | None]:
    """For ssh and for applications, where the settings want them."""
    apps = settings.GPUSHARE_APPS_LISTEN if settings.GPUSHARE_APPS else None
    ssh, http = (listen(*each) if each else None for each in (settings.GPUSHARE_SSH, apps))
    return ssh, http


def let_in(ssh: socket.socket | None, apps: socket.socket | None) -> None:
    """Until SIGTERM or SIGINT."""
    asyncio.run(_let_in(ssh, apps))


async def _let_in(ssh: socket.socket | None, apps: socket.socket | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as opened:
        if ssh:
            from web.door.server import open_door  # 20 MiB that nobody else need have

            await opened.enter_async_context(await open_door(ssh))
        if apps:
            from appliance.running.apps import AppsDoor

            await opened.enter_async_context(await AppsDoor().open(apps))
            apps.listen(BACKLOG)  # asyncio made it as short as what it takes at once
        await ended.wait()

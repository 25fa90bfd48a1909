"""A TCP connection to a port in a container, over the WebSocket /ws/containers/ID/ports/PORT/."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from appliance import proxies
from appliance.cli.client import Client
from appliance.cli.errors import Problem, from_answer, unreachable

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

CHUNK = 64 << 10  # bytes of a message
QUEUE = 16  # messages that came and were not read yet


class Tunnel:
    """Bytes both ways; made by `dial`. `port`: the one in the container."""

    def __init__(self, socket: ClientConnection, port: int) -> None:
        self._socket, self.port = socket, port

    @property
    def has_ended(self) -> bool:
        return self._socket.close_code is not None

    async def read(self) -> bytes:
        """Empty once the application has hung up."""
        from websockets.exceptions import ConnectionClosed

        try:
            message = await self._socket.recv()
        except ConnectionClosed:
            return b""
        return message if isinstance(message, bytes) else b""  # a text: somebody's right has ended

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError if the application has hung up."""
        from websockets.exceptions import ConnectionClosed

        try:
            for at in range(0, len(data), CHUNK):
                await self._socket.send(data[at : at + CHUNK])
        except ConnectionClosed:
            raise ConnectionResetError from None

    async def close(self) -> None:
        await self._socket.close()


async def dial(client: Client, container: str, port: int) -> Tunnel:
    """`port` 0: the only one that listens. Raises Problem."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed, InvalidHandshake

    try:
        socket = await connect(**client.websocket(f"containers/{container}/ports/{port}/"), max_queue=QUEUE)
        answer = json.loads(await socket.recv())
    except ImportError as error:
        raise Problem(str(proxies.unusable(client.url, error)), code="bad_proxy") from None
    except (OSError, InvalidHandshake, ConnectionClosed) as error:
        raise unreachable(client.url, error) from None
    if "error" in answer:
        raise from_answer(answer["status"], answer)
    return Tunnel(socket, answer["port"])

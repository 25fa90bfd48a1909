"""A port for a server that is given a port to listen on, and cannot be handed a socket."""

import random
import socket

# Below what the kernel gives to whoever asks for any port, or connects: between the look and the server's start no
# other test's connection comes to have it. Above an appliance's own port, and below those that containers publish.
RANGE = range(10_000, 20_000)


def free_port(address: str = "127.0.0.1") -> int:
    """Nobody has it now, and nobody but another caller of this, one time in thousands, has it a moment later."""
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):
        with socket.socket() as tried:
            try:
                tried.bind((address, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port of {address} is free")

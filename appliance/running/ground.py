"""What an appliance runs on, in words: `make demo` and `make up` say it alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings

ENGINES = {"docker": "Docker containers", "swarm": "containers of Docker's Swarm", "kubernetes": "pods' containers"}


def described(gpus: Sequence[Mapping[str, Any]], engine: str) -> str:
    """Indented lines. `gpus`: {name, capacity, simulated} of each. Plainly when a card is not a real one."""
    lines = []
    if gpus:
        cards = (f"{gpu['name']} ({gpu['capacity'] / 2**30:.1f} GiB to share)" for gpu in gpus)
        lines.append(f"Card: {', '.join(cards)}")
    simulated = any(gpu["simulated"] for gpu in gpus)
    no_gpu = simulated and settings.GPUSHARE_GPUS.startswith("auto")
    if simulated:
        lines.append("No NVIDIA GPU was found, so this card is SIMULATED." if no_gpu else "This card is SIMULATED.")
    no_docker = engine == "process" and settings.GPUSHARE_ENGINE == "auto"
    processes = f"local processes{' (no Docker engine answered)' if no_docker else ''}"
    lines.append(f"Running: {ENGINES.get(engine, processes)}")
    if no_gpu or no_docker:
        lines.append("`gpushare doctor` says why.")
    return "\n".join(f"  {line}" for line in lines)

"""What the containers of a claim are equipped with, as CDI says it: the same as all containers of ours."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.engines.docker.gpu_access import Additions, Cdi, detect
from scheduler.engines.runtime_environment import RuntimeEnvironment, keep_text, said_of_memory
from scheduler.kubernetes import cdi
from web.spec.inside.reserved import SHIM

NVIDIAS = ("/etc/cdi", "/var/run/cdi")  # where NVIDIA's own specification may be
Cards = Mapping[str, tuple[str, int]]  # device → its UUID, and bytes of it


class RuntimeEnvironments:
    """`totals`: the memory of each card, by UUID. `access`: how a card reaches a container (GPUSHARE_GPU_ACCESS)."""

    def __init__(
        self, folder: Path, home: Path, runtime_environment: RuntimeEnvironment, access: str, totals: Mapping[str, int]
    ) -> None:
        self._specifications = cdi.Specifications(folder)
        self._shim = runtime_environment.shim
        self._totals = totals
        way = "raw" if access == "runtime" else access  # that is Docker's
        self._access = detect(way, {"CDISpecDirs": NVIDIAS}, runtime_environment.simulation)
        self._preload = home / "ld.so.preload"
        keep_text(f"{SHIM}\n", self._preload)

    def write(self, uid: str, cards: Cards, sockets: Path) -> None:
        """Blocking. `sockets`: the claim's folder. Raises OSError."""
        self._specifications.write(uid, self._specification(uid, cards, sockets))

    def specification(self, uid: str, cards: Cards, sockets: Path) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Blocking. For who gets it without CDI; and CDI devices of others that it needs, if there are any."""
        others = [id_ for device in cards for id_ in self.ids(uid, device, cards)[1:]]
        return self._specification(uid, cards, sockets), others

    def _specification(self, uid: str, cards: Cards, sockets: Path) -> dict[str, Any]:
        smallest = min(cards, key=lambda device: cards[device][1])
        card, quota = cards[smallest]
        said = said_of_memory(quota, self._totals[card])
        reached = {device: (uuid, self._reaches(uuid)) for device, (uuid, _) in cards.items()}
        return cdi.specification(
            uid, sockets=sockets, shim=self._shim, preload=self._preload, cards=reached, given=said
        )

    def ids(self, uid: str, device: str, cards: Cards) -> Sequence[str]:
        """The CDI devices by which a container gets this card of the claim."""
        nvidias = [f"nvidia.com/gpu={cards[device][0]}"] if isinstance(self._access, Cdi) else []
        return [cdi.device_id(uid, device), *nvidias]

    def remove(self, uid: str) -> None:
        """Blocking. Raises OSError."""
        self._specifications.remove(uid)

    def clear(self, living: Collection[str]) -> None:
        """Blocking. Takes away what no living claim has, by uid. Raises OSError."""
        self._specifications.clear(living)

    def _reaches(self, uuid: str) -> Additions:
        return Additions() if isinstance(self._access, Cdi) else self._access.additions([uuid])

"""An appliance whose launches go to a Swarm, with the card simulated: everything else is real."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.appliance import ROOT, Appliance
from tests.support.dockerd import build_image
from tests.support.swarm_lab import Lab, lab

IMAGE = "gpushare/swarm:latest"


def knows_the_plugin(swarm: Lab) -> bool:
    plugins = [each for node in swarm.nodes(swarm.members[0]) for each in node["Description"]["Engine"]["Plugins"]]
    return any(plugin["Name"] == "gpushare" for plugin in plugins)


@contextmanager
def in_a_swarm(*declared: dict[str, int], gpus: str = "sim:1x1GiB", **environ: str) -> Iterator[tuple[Appliance, Lab]]:
    """What each node declares; the first has the appliance, with these settings, and the others nothing of ours."""
    with lab(declared, image=False) as swarm:
        member = swarm.members[0]
        libraries = [ROOT / ".build" / "libgpushare.so", ROOT / ".build" / "sim" / "libcuda.so.1"]
        build_image(member.api, IMAGE, [ROOT / ".build" / "workload"], mounted=libraries)
        folder = Path(tempfile.mkdtemp(prefix="gs-"))  # as short as sockets need it
        settings = {
            "GPUSHARE_ENGINE": "swarm",
            "GPUSHARE_NODE": member.name,
            "GPUSHARE_PORTS_WITHOUT_TLS": "1",
            "GPUSHARE_DOCKER_HOST": member.address,
            "GPUSHARE_PLUGIN_SOCKET": str(member.folder / "plugins" / "gpushare.sock"),
        }
        made = Appliance(folder / "home", gpus=gpus, **settings | environ)
        try:
            yield made, swarm
        finally:
            made.close()
            shutil.rmtree(folder, ignore_errors=True)

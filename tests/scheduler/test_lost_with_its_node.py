"""A node that was removed by force comes back: what it held has ended by then, whatever its programs think."""

from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from web.models import Claim, Node
from web.services import nodes

HOLD = ("--hold", "600")


async def test_what_was_lost_is_ended_there_and_its_memory_is_everybodys(host: InProcess) -> None:
    lost = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(lost, "holding")
    await host.stop()
    await query(Node.objects.update, seen_at=None)
    await query(nodes.expel, "root", (await query(Node.objects.get)).name, force=True)
    await host.start()
    another = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(another, "holding")
    assert (await host.get(lost)).reason == "Lost with its node."
    assert not await query(Claim.objects.filter(container=lost.pk, used__gt=0).exists)
    assert await query(Node.objects.listed().exists)
    await host.eventually(lambda: str(lost.pk) not in host.engine.containers)

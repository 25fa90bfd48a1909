"""A program that cuts the simulated card's file off, from inside its container: decisions for others go on."""

from __future__ import annotations

from tests.scheduler.test_held_up import bystander
from tests.support.eventually import eventually
from tests.support.host import MIB, Host


async def test_others_allocate_and_begin_while_the_card_is_cut_off(host: Host) -> None:
    card = host.up.gpus.simulation
    assert card is not None
    whole = card.read_bytes()
    async with bystander(host):
        cuts = await host.launch("sh", "-c", ': > "$GPUSHARE_SIM"', gpu_memory=MIB)
        await host.until(cuts, "exited")
        assert card.read_bytes() == b""
        await host.up.measure.once()
        assert host.up.measure.readings == {}
        begins = await host.launch("true", gpu_memory=MIB)
        await host.until(begins, "exited")
        with card.open("r+b") as file:
            file.write(whole)
        await eventually(lambda: list(host.up.measure.readings) == list(host.up.gpus.cards))

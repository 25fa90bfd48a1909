"""A program that cuts the simulated card's file off, from inside its container: decisions for others go on."""

from tests.scheduler.test_held_up import bystander
from tests.support.eventually import eventually
from tests.support.host import MIB, Host


async def test_others_allocate_while_the_card_is_cut_off_and_begin_when_it_is_back_in_service(host: Host) -> None:
    card = host.up.gpus.simulation
    assert card is not None
    whole = card.read_bytes()
    async with bystander(host):
        cuts = await host.launch("sh", "-c", ': > "$GPUSHARE_SIM"', gpu_memory=MIB)
        await host.until(cuts, "exited")
        assert card.read_bytes() == b""
        await host.up.measure.once()
        assert host.up.measure.readings == {}
        (gpu,) = host.up.gpus.cards
        assert host.up.service.is_drained(gpu)  # to the scheduler it has fallen off the bus
        with card.open("r+b") as file:
            file.write(whole)
        await eventually(lambda: list(host.up.measure.readings) == list(host.up.gpus.cards))
        await host.command("undrain-gpu", gpu=gpu)
        begins = await host.launch("true", gpu_memory=MIB)
        await host.until(begins, "exited")

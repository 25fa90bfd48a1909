"""Which container a row is of, the engine says: what a row has as its engine's id can have been written by others."""

from tests.scheduler.test_garbage_collection import engine_has, is_removed
from tests.support.host import query
from tests.support.inprocess.host import InProcess
from web.models import Container


async def names(row: Container, other: Container) -> None:
    await query(Container.objects.filter(pk=row.pk).update, engine_id=other.engine_id)


async def test_removing_an_ended_one_takes_away_that_one_and_not_the_one_its_row_names(host: InProcess) -> None:
    mine, other = await host.launch("true"), await host.launch("true")
    for each in (mine, other):
        await host.until(each, "exited")
    await names(mine, other)
    assert (await host.command("remove", mine)).outcome == "done"
    await is_removed(host, mine)
    assert engine_has(host, other)
    assert not engine_has(host, mine)
    assert (await host.get(other)).removed_at is None


async def test_a_restarted_scheduler_kills_the_one_that_was_meant(host: InProcess) -> None:
    mine, other = await host.launch("sleep", "600"), await host.launch("sleep", "600")
    await host.stop()
    await names(mine, other)
    await host.start()
    assert (await host.command("kill", mine)).outcome == "done"
    await host.until(mine, "killed")
    assert (await host.get(other)).finished_at is None
    assert (await host.command("kill", other)).outcome == "done"

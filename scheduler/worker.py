"""The scheduler: start, run, stop. What it is made of stands in components.py.

    stop = asyncio.Event()
    await Scheduler().run(stop)

It runs in a process of its own (`manage.py runscheduler`, or one of the two of `manage.py up`). There is one per
host. Stopping it leaves the containers running: the next one takes them over.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

from django.conf import settings

from scheduler import hints, notify, starting
from scheduler.card.access import CardAccess
from scheduler.clock import Source as Clock
from scheduler.clock import monotonic, now
from scheduler.clock import use as use_clock
from scheduler.components import Components
from scheduler.core import policies
from scheduler.engines.base import Engine
from scheduler.gpus import Gpus
from scheduler.heap import give_large_blocks_back
from scheduler.parts import ONCE, PERIODS, Part, running
from scheduler.plugins import plugin_of
from scheduler.proc import Source as Processes
from scheduler.proc import use as use_processes
from scheduler.sessions.waits import RECONNECTING
from scheduler.store import Store, node_lease
from scheduler.watchdog import Watchdog
from web.audit import anchor

log = logging.getLogger(__name__)

LOOP_WAITS = 0.0005  # seconds that the database's thread may hold the interpreter while a decision is due


class Scheduler(Components):
    """What it is given takes the place of this host's; `engine` has been started."""

    def __init__(
        self,
        engine: Engine | None = None,
        gpus: Gpus | None = None,
        card: CardAccess | None = None,
        clock: Clock | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.home, self.started = settings.GPUSHARE_HOME, asyncio.Event()
        self._engine, self._gpus, self._card = engine, gpus, card
        use_clock(clock or Clock())
        use_processes(processes or Processes())

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set. Raises one of CANNOT_START (starting.py) if it cannot start."""
        async with AsyncExitStack() as shutdown:  # undoes what the start has done, the last first
            with starting.writing_in_words():
                anchor.begin()
                shutdown.enter_context(starting.only_one(self.home))
            stopping = asyncio.create_task(stop.wait())
            shutdown.callback(stopping.cancel)
            startup = asyncio.create_task(self._startup(shutdown))
            await asyncio.wait([startup, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not startup.done():
                startup.cancel()
                await asyncio.wait([startup])
                return
            await startup
            await self._loop(stopping)

    async def _startup(self, shutdown: AsyncExitStack) -> None:
        """Everything in its order: what lives is known before a socket opens, and is written down when all ends."""
        with starting.writing_in_words():
            starting.allow_many_descriptors()
            give_large_blocks_back()
            sys.setswitchinterval(LOOP_WAITS)
            await self._open(shutdown)
            await self._take_over(shutdown)
            await self._begin_to_decide()
            await shutdown.enter_async_context(running(self._parts()))

    async def _loop(self, stopping: asyncio.Task[bool]) -> None:
        """All is done by the parts. Raises NameTaken if another scheduler has this node's name."""
        cards = len(self.gpus.cards)
        gpus = f"{cards} GPU{'s' * (cards != 1)}"
        log.info("the scheduler has started with %s containers and %s", self.engine.name, gpus)
        self.started.set()
        losing = asyncio.create_task(self.store.lost.wait())
        await asyncio.wait([stopping, losing], return_when=asyncio.FIRST_COMPLETED)
        losing.cancel()
        if self.store.lost_because:
            raise self.store.lost_because

    async def _open(self, shutdown: AsyncExitStack) -> None:
        """Cards, database, plug-in and engine; then all that works with them."""
        self.gpus = self._gpus or await Gpus.open(settings.GPUSHARE_GPUS, self.home, settings.GPUSHARE_BUILD)
        shutdown.push_async_callback(self.gpus.close)
        self.store = Store(settings.GPUSHARE_NODE, node_lease.holder(self.home))
        self.watchdog = Watchdog(self.store.figures.lateness.note)
        measured = {uuid: size for uuid, size in self.gpus.contexts.items() if uuid not in self.gpus.unmeasured}
        self.gpus.suppose(
            await self.store.open(
                self.gpus.cards, measured, policies=policies.described(), driver=self.gpus.driver,
                simulated=self.gpus.simulation is not None, release=settings.GPUSHARE_VERSION,
            )
        )  # fmt: skip
        shutdown.push_async_callback(self.store.close)
        policy = await starting.policy(self.store)
        self.store.node(policy=policy)
        self.plugin = plugin_of(settings.GPUSHARE_ENGINE)(self.home, self.gpus, self.store)
        shutdown.push_async_callback(self.plugin.close)
        await self.plugin.open()
        own = self.plugin.engine if self._engine is None else lambda runtime_environment: self._engine
        self.engine = await starting.find_engine(self.store, self.gpus, own)
        shutdown.push_async_callback(self.engine.close)
        self.card = self._card or CardAccess.open(self.home, settings.GPUSHARE_BUILD, self.gpus.environment)
        shutdown.callback(self.card.generation.close)
        self.put_together(policy)
        shutdown.callback(self.server.close)

    async def _take_over(self, shutdown: AsyncExitStack) -> None:
        """What lives is known, and the first reading of the cards; then the sockets open."""
        begun = monotonic()
        await self.fair_share.start()
        shutdown.push_async_callback(self.fair_share.close)
        await self.reservations.start()
        await self.plugin.expect()
        await self.take_over.run()
        if not self.broker.unseen:
            self.grants.all_noted()
        await self.time_limits.start()
        await self.bypass.start()
        await self.service.start()
        log.info("took over %d processes in %.2f s", len(self.broker.sessions), monotonic() - begun)
        await self.consoles.open()
        for part in (self.consoles, self.ender, self.swapping, self.turns, self.commands):
            shutdown.push_async_callback(part.close)
        await self.measure.once()  # foreign memory is to be known before the first decision
        self.take_over.open_sockets()
        self.plugin.give_again()
        self.report.publish()
        self.store.node(seen_at=now())
        await self.store.durable()

    async def _begin_to_decide(self) -> None:
        """What an earlier scheduler left half done goes on."""
        await self.store.settle(lambda: list(self.broker.live_containers))
        await self.ender.resume(self.containers.all())
        await self.swapping.start()
        self.store.node(cannot_swap=self.swapping.why_not)
        self.say_who_gives_way()
        await self.sharing.start()
        await self.swapping.go_on()

    def _heard(self) -> dict[str, Callable[[], None]]:
        """Hint → what it wakes."""
        return {
            "wake": self.commands.wake, "shares": self.fair_share.wake,
            "planned": self.planner.wake, "reservations": self.reservations.wake,
        }  # fmt: skip

    async def _look_again(self) -> None:
        if await self.take_over.look_again(self.swapping.found_late):
            self.grants.all_noted()

    def _parts(self) -> list[Part]:
        """What runs from now on; how often, PERIODS says (parts.py)."""
        systemd = notify.watchdog()
        return [
            Part("store", self.store.run),
            Part("sockets", self.server.run),
            Part("commands", self.commands.run),
            Part("planned launches", self.planner.run),
            Part("hints", lambda: hints.listen(self.store.channel, self._heard())),
            Part("engine", self.follow_engine),
            Part("plug-in", self.plugin.run),
            *([Part("placer", self.dispatcher.run)] if self.dispatcher else []),
            Part("ended processes", self.reaper.run),
            Part("processes found late", self._look_again, every=ONCE),
            Part("waits", self.tick),
            Part("waits before", self.broker.waits.stop_expecting, after=RECONNECTING, every=ONCE),
            Part("measurements", self.measure.run),
            Part("who computes", self.computing.run),
            Part("contexts", self.contexts.run, every=ONCE),
            Part("time limits", self.time_limits.look),
            Part("use of the host", self.using.look),
            Part("health", self.health.look),
            Part("cards that are emptied", self.service.empty, every=PERIODS["health"]),
            Part("cards out of service", self.service.look, every=PERIODS["health"]),
            Part("forecasts", self.forecasts.look),
            Part("changes shown", self.report.run),
            Part("use inside leases", self.report.glance),
            *([Part("link to the web side", self.relay.run)] if settings.GPUSHARE_WEB else []),
            Part("leftovers", self.leftovers.look),
            Part("fair share", self.fair_share.run),
            Part("usage", self.fair_share.write),
            Part("reservations", self.reservations.run),
            Part("what is reserved", self.reservations.look),
            Part("housekeeping", self.housekeeping.look, after=PERIODS["housekeeping"]),
            Part("audit anchor", self.anchoring.look),
            Part("audit verification", self.verifying.run),
            Part("watchdog", self.watchdog.run),
            Part("sign of life", self.live),
            *([Part("systemd", self.prove, every=systemd / 4)] if systemd else []),
        ]

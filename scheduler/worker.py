"""The scheduler: start, run, stop. Everything it is made of is put together here.

    stop = asyncio.Event()
    await Scheduler().run(stop)

It runs in a process of its own (`manage.py runscheduler`, or one of the two of `manage.py up`). There is one per
host. Stopping it leaves the containers running: the next one takes them over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from channels.worker import Worker  # type: ignore[import-untyped]
from django.conf import settings

from scheduler import clock, notify
from scheduler.card.generation import Generation
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardHelper
from scheduler.card.speeds import Speeds
from scheduler.card.turns import TurnPlayer
from scheduler.containers.commands import Commands
from scheduler.containers.consoles import Consoles
from scheduler.containers.consoles.relay import Relay
from scheduler.containers.dispatcher import Dispatcher
from scheduler.containers.ending import Ender
from scheduler.containers.intents import Intents
from scheduler.containers.launch import Launcher
from scheduler.containers.leftovers import Leftovers
from scheduler.containers.life import Containers
from scheduler.containers.outlook import Outlook
from scheduler.containers.removal import Removal
from scheduler.containers.room import available
from scheduler.containers.steering import Steering
from scheduler.containers.swapping import Swapping
from scheduler.containers.takeover import TakeOver
from scheduler.core import policies
from scheduler.core.events import GivingWayChanged, GpuSeen, Ticked
from scheduler.core.state import GivingWay, Mode, State
from scheduler.core.turns import Rules
from scheduler.engines.base import Engine, EngineAway
from scheduler.engines.choose import choose
from scheduler.engines.host_memory import HostMemory
from scheduler.engines.kubernetes.engine import MEMORY_STAYS, KubernetesEngine
from scheduler.engines.outfit import Simulation
from scheduler.gpus import Gpus, Reading
from scheduler.heap import give_large_blocks_back
from scheduler.hints import Hints
from scheduler.monitors.activity import Activity
from scheduler.monitors.anchoring import Anchoring
from scheduler.monitors.bypass import Bypass
from scheduler.monitors.contexts import Contexts
from scheduler.monitors.health import Health
from scheduler.monitors.housekeeping import Housekeeping
from scheduler.monitors.idle import Idle
from scheduler.monitors.measure import Measure
from scheduler.monitors.samples import History
from scheduler.monitors.status_publisher import StatusPublisher
from scheduler.monitors.time_limits import TimeLimits
from scheduler.monitors.turns.computing import Computing
from scheduler.monitors.turns.shares import Shares
from scheduler.monitors.turns.sharing import Sharing
from scheduler.monitors.using import Using
from scheduler.monitors.verifying import Verifying
from scheduler.plugin.plugin import Plugin
from scheduler.sessions.broker import Broker
from scheduler.sessions.grants import Grants
from scheduler.sessions.processes import Sessions
from scheduler.sessions.reaper import Reaper
from scheduler.sessions.roster import Roster
from scheduler.sessions.server import Server
from scheduler.sessions.waits import RECONNECTING
from scheduler.starting import allow_many_descriptors, only_one, writing_in_words
from scheduler.store import Store, node_lease
from scheduler.watchdog import Watchdog
from web.audit import anchor
from web.models import AllocationEvent

if TYPE_CHECKING:
    from scheduler.kubernetes.node import Node

log = logging.getLogger(__name__)

SIGN_OF_LIFE = 1.0  # seconds
TICK = 0.1  # seconds; the precision of max_wait_seconds
LOOP_WAITS = 0.0005  # seconds that the database's thread may hold the interpreter while a decision is due
RESTART = 1.0


class Scheduler:
    def __init__(self) -> None:
        self.home: Path = settings.GPUSHARE_HOME
        self.started = asyncio.Event()
        self.watchdog = Watchdog()

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set. Raises one of CANNOT_START (starting.py) if it cannot start."""
        async with AsyncExitStack() as stack:
            with writing_in_words():
                anchor.begin()
                stack.enter_context(only_one(self.home))
            stopping = asyncio.create_task(stop.wait())
            stack.callback(stopping.cancel)
            starting = asyncio.create_task(self._start(stack))
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait([starting])
                return
            await starting
            cards = len(self.gpus.cards)
            gpus = f"{cards} GPU{'s' * (cards != 1)}"
            log.info("the scheduler has started with %s containers and %s", self.engine.name, gpus)
            self.started.set()
            losing = asyncio.create_task(self.store.lost.wait())
            await asyncio.wait([stopping, losing], return_when=asyncio.FIRST_COMPLETED)
            losing.cancel()
            if self.store.lost_because:
                raise self.store.lost_because

    async def _start(self, stack: AsyncExitStack) -> None:
        with writing_in_words():
            await self._start_all(stack)

    async def _start_all(self, stack: AsyncExitStack) -> None:
        """Everything in its order: what lives is known before a socket opens, and is written down when all ends."""
        allow_many_descriptors()
        give_large_blocks_back()
        sys.setswitchinterval(LOOP_WAITS)
        self.gpus = await Gpus.open(settings.GPUSHARE_GPUS, self.home, settings.GPUSHARE_BUILD)
        stack.push_async_callback(self.gpus.close)
        self.store = Store(settings.GPUSHARE_NODE, node_lease.holder(self.home))
        self.figures = self.store.figures
        self.watchdog.measured = self.figures.lateness.note
        measured = {uuid: size for uuid, size in self.gpus.contexts.items() if uuid not in self.gpus.unmeasured}
        self.gpus.suppose(await self.store.open(self.gpus.cards, measured, **self._node()))
        stack.push_async_callback(self.store.close)
        self.policy = await self._policy()
        self.store.node(policy=self.policy)
        self.plugin = self._plugin()
        stack.push_async_callback(self.plugin.close)
        await self.plugin.open()
        self.engine = await self._find_engine()
        stack.push_async_callback(self.engine.close)
        self._put_together()
        stack.callback(self.generation.close)
        stack.callback(self.server.close)
        begun = clock.monotonic()
        await self.plugin.expect()
        await self.take_over.run()
        self.grants.all_noted()
        told_of, kind = self.store.records.told_of, AllocationEvent.Kind
        self.time_limits.warned |= {id_ for id_, _ in await told_of(kind.WARNED)}
        self.bypass.told = await told_of(kind.BYPASS)
        log.info("took over %d processes in %.2f s", len(self.broker.sessions), clock.monotonic() - begun)
        await self.consoles.open()
        stack.push_async_callback(self.consoles.close)
        stack.push_async_callback(self.ender.close)
        stack.push_async_callback(self.swapping.close)
        stack.push_async_callback(self.turns.close)
        stack.push_async_callback(self.commands.close)
        await self.measure.once()  # foreign memory is to be known before the first decision
        self.take_over.open_sockets()
        self.plugin.give_again()
        self.report.publish()
        self.store.node(seen_at=clock.now())
        await self.store.durable()
        await self.store.settle(lambda: list(self.broker.tenants))
        await self.ender.resume(self.containers.all())
        self.swapping.speeds = Speeds(await self.store.records.moved())
        await self.swapping.start()
        self.store.node(cannot_swap=self.swapping.why_not)
        self._giving_way()
        await self.sharing.start()
        await self.swapping.go_on()
        self.take_over.took = self.swapping.found_late
        await stack.enter_async_context(self._background())

    def _node(self) -> dict[str, Any]:
        return {
            "policies": policies.described(),
            "driver": self.gpus.driver,
            "simulated": self.gpus.simulation is not None,
            "release": settings.GPUSHARE_VERSION,
        }

    async def _policy(self) -> str:
        """What an admin chose, if there is one of that name still; else what the setting says."""
        asked = await self.store.records.policy_asked()
        if asked and asked not in policies.POLICIES:
            log.warning("there is no policy %r any more; it is %s now", asked, settings.GPUSHARE_POLICY)
        return asked if asked in policies.POLICIES else str(settings.GPUSHARE_POLICY)

    async def _find_engine(self) -> Engine:
        """Waits for the engine that was asked for, and says so meanwhile."""
        state = self.gpus.simulation
        simulation = Simulation(settings.GPUSHARE_BUILD / "sim", state) if state else None
        while True:
            try:
                engine = await choose(simulation, await self.store.records.living_by_engine())
                await self._speak_for(engine)
            except EngineAway as error:
                log.warning("%s", error)
                self.store.node(seen_at=clock.now(), engine_error=str(error)[:500])
                await self.store.durable()
                await asyncio.sleep(SIGN_OF_LIFE)
            else:
                self.store.node(engine=engine.name, engine_error="", outdated=list(engine.outdated))
                return self.figures.watch(engine)

    async def _speak_for(self, engine: Engine) -> None:
        """Says to all whether launches come here, to be given on. Raises EngineAway."""
        if settings.GPUSHARE_AUDIT_KEY:  # a host with a role of its own cannot say so
            return
        if engine.placer is None:
            self.store.node(placer="")
        elif why_not := await self.store.pending_placements.speak_for(engine.placer.whole):
            await engine.close()
            raise EngineAway(why_not)

    def _put_together(self) -> None:
        state = State(policy=self.policy)
        self.report = StatusPublisher(self.store)
        self.broker = self.report.broker = Broker(self.store, self.gpus.contexts, state, self.report.changed)
        self.outlook = self.report.outlook = Outlook(self.broker, self.store)
        self.broker.took = self.figures.decisions.note
        self.roster = Roster(self.broker)
        self.grants = Grants(self.home / "grants")
        self.sessions = Sessions(
            self.broker, self.roster, self.grants, self.engine.owns, lambda session: self.reaper.add(session)
        )
        self.reaper = Reaper(self.gpus, self.sessions.gone)
        self.server = Server(self.home / "sockets", self.sessions)
        self.consoles = Consoles(self.engine, self.broker, self.home)
        self.relay = Relay(self.home, self.store.records.relay_orders)
        self.memory = HostMemory()
        self.intents = Intents(self.store)
        self.dispatcher = Dispatcher(self.engine.placer, self.engine, self.store) if self.engine.placer else None
        self.removal = Removal(self.engine, self.intents, self.store)
        self.containers = Containers(
            self.engine, self.broker, self.roster, self.server, self.store, self.removal, self.memory
        )
        self.take_over = TakeOver(
            self.containers, self.engine, self.broker, self.sessions, self.server, self.gpus, self.store
        )
        self.launcher = Launcher(
            self.containers, self.engine, self.consoles, self.broker, self.server, self.gpus, self.intents,
            self.store, self.home,
        )  # fmt: skip
        env = {**os.environ, **self.gpus.environment}
        self.generation = Generation(self.home / "guardian.lock")
        self.turns = TurnPlayer(
            CardHelper(env, self.generation), Guardian(settings.GPUSHARE_BUILD / "guardian", self.generation, env),
            Rules(cycle=settings.GPUSHARE_TURN_CYCLE),
        )  # fmt: skip
        self.ender = Ender(self.engine, self.broker, self.intents, self.turns, self.store.records)
        budget = settings.GPUSHARE_SWAP_MEMORY
        self.swapping = Swapping(
            CardHelper(env, self.generation), self.engine, self.broker, self.store, self.turns,
            lambda tenant, reason: self.ender.end(tenant, reason=reason),
            available() // 2 if budget is None else budget,
        )  # fmt: skip
        self.swapping.moved = self._giving_way
        self.plugin.meet(self.engine, self.containers, self.broker, self.server, self.ender)
        self.steering = Steering(
            self.containers, self.engine, self.broker, self.roster, self.swapping, self.turns, self.store
        )
        if isinstance(self.engine, KubernetesEngine):
            self.steering.require_within = self.engine.require_within
            self.swapping.never = MEMORY_STAYS
        self.commands = Commands(
            self.containers,
            self.launcher,
            self.dispatcher,
            self.steering,
            self.ender,
            self.removal,
            self.broker,
            self.store,
        )
        self.housekeeping = Housekeeping(self.store)
        self.anchoring = Anchoring(self.store)
        self.verifying = Verifying(self.store)
        self.health = Health(self.store, self.engine)
        self.time_limits = TimeLimits(self.ender, self.containers, self.store)
        self.shares = Shares(self.broker, self.store)
        self.using = Using(self.engine, self.broker, self.store)
        self.history = History(self.broker, self.store, self.shares, self.using)
        self.idle = Idle(self.intents, self.broker, self.store, self.turns.is_stopped)
        self.activity = Activity(self.broker, self.home / "habits")
        self.bypass = Bypass(self.ender, self.broker, self.store)
        self.measure = Measure(
            self.gpus, self.broker, self.store, self.engine.owns, self.sessions.end_replaced, self.bypass.look,
            self._measured,
        )  # fmt: skip
        self.computing = Computing(self.gpus, self.broker, self.turns)
        self.computing.escaped = self.bypass.computes_stopped
        self.sharing = Sharing(self.gpus, self.turns, self.computing, self.broker, self.store)
        self.shares.standing = self.sharing.standing
        self.commands.set_mode = self.sharing.set_mode
        self.steering.share_changed = self.computing.changed
        self.contexts = Contexts(self.gpus, self.store)
        self.leftovers = Leftovers(self.containers, self.launcher, self.removal, self.store)
        for card in self.gpus.cards.values():
            self.broker.tell(GpuSeen(self.broker.now(), card.uuid, card.capacity(0), card.capacity(0)))

    def _plugin(self) -> Plugin | Node:
        """Who brings containers that nobody launches here."""
        if settings.GPUSHARE_ENGINE == "kubernetes":
            from scheduler.kubernetes.node import Node  # needs grpcio, which only such a node has

            return Node(self.store, self.gpus, self.home, lambda: self.broker.state,
                        lambda gpu: self.turns.mode(gpu).value)  # fmt: skip
        return Plugin(self.store, self.home)

    async def _measured(self, readings: Mapping[str, Reading]) -> None:
        self.report.show_gpus()
        self.health.see(self.gpus.cards, readings)
        self.plugin.see(readings)
        self.history.write(readings)
        self.swapping.look()
        await self.idle.look(readings)
        await self.activity.look()

    def _giving_way(self) -> None:
        """Tells the core who is to give way, and what that costs as far as it is known."""
        speeds, minutes = self.swapping.speeds, settings.GPUSHARE_IDLE_MINUTES
        rule = GivingWay(
            mode=Mode.OFF if self.swapping.why_not else Mode(settings.GPUSHARE_GIVE_WAY),
            idle=60 * minutes or math.inf,
            rotate=60 * settings.GPUSHARE_ROTATE_AFTER,
            out=speeds.rate("out"),
            back=speeds.rate("back"),
            memory=self.swapping.budget,
        )
        self.broker.tell(GivingWayChanged(self.broker.now(), rule))
        self.store.node(moved=dict(speeds.moved))

    @asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        parts: list[Callable[[], Awaitable[None]]] = [
            self.store.run, self.server.run, self.reaper.run, self.measure.run, self.commands.run, self.time_limits.run,
            self.leftovers.run, self.contexts.run, self.computing.run, self.using.run, self.report.run,
            self.report.glance, self._tick, self._prove, self._live, self._follow_engine, self._listen_to_hints,
            self._stop_expecting, self.housekeeping.run, self.watchdog.run, self.anchoring.run, self.verifying.run,
            self.health.run, self.outlook.run, self.plugin.run, self.relay.run, self.take_over.look_again,
        ]  # fmt: skip
        if self.dispatcher is not None:
            parts.append(self.dispatcher.run)
        tasks = [asyncio.create_task(_keep_going(part), name=part.__qualname__) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            if self.broker.state.waiting:
                self.broker.tell(Ticked(self.broker.now()))
                self.sessions.tick()
            self.broker.records.tick()

    async def _prove(self) -> None:
        """systemd's watchdog hears of decisions really made: a loop that turns but cannot decide is started again."""
        while period := notify.watchdog():
            self.broker.tell(Ticked(self.broker.now()))
            notify.tell("WATCHDOG=1")
            await asyncio.sleep(period / 4)
        await asyncio.Event().wait()

    async def _live(self) -> None:
        """A sign of life, and everything that changes without a message: use inside leases above all."""
        while True:
            late = round(self.watchdog.take_worst(), 3)
            self.store.node(
                seen_at=clock.now(), engine_error=self.engine.away[:500], late=late,
                figures=self.figures.told(**self.store.progress(), turns=self.turns.given),
            )  # fmt: skip
            self.report.publish()
            self.memory.look()
            await asyncio.sleep(SIGN_OF_LIFE)

    async def _follow_engine(self) -> None:
        async for sighting in self.engine.changes():
            self.containers.told(sighting)

    async def _listen_to_hints(self) -> None:
        """A Channels worker for one channel, in this loop."""
        channel = self.store.channel
        worker = Worker(
            Hints.as_asgi(heard=self.commands.wake, relayed=self.relay.wake), [channel], get_channel_layer()
        )
        async with asyncio.TaskGroup() as both:  # neither goes on without the other
            both.create_task(worker.application_checker())
            both.create_task(worker.listener(channel))

    async def _stop_expecting(self) -> None:
        await asyncio.sleep(RECONNECTING)
        self.broker.waits.stop_expecting()
        await asyncio.Event().wait()


async def _keep_going(part: Callable[[], Awaitable[None]]) -> None:
    """Runs a part of the scheduler for ever: a failure is logged, and the part starts again."""
    while True:
        try:
            await part()
            log.error("%s has ended; it starts again", part.__qualname__)
        except Exception:
            log.exception("%s failed; it starts again", part.__qualname__)
        await asyncio.sleep(RESTART)

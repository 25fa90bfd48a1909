"""What a scheduler is made of: every part with what it works with, and the short calls that join several of them."""

import math
from collections.abc import Mapping
from pathlib import Path

from django.conf import settings

from scheduler import clock, notify
from scheduler.card.access import CardAccess
from scheduler.card.turns import TurnPlayer
from scheduler.containers.commands import Actions, Commands
from scheduler.containers.consoles import Consoles
from scheduler.containers.consoles.relay import Relay
from scheduler.containers.dispatcher import Dispatcher
from scheduler.containers.forecasts import Forecasts
from scheduler.containers.garbage_collection import GarbageCollector
from scheduler.containers.intents import Intents
from scheduler.containers.launch import Launcher
from scheduler.containers.moving import note_movable
from scheduler.containers.planner import Planner
from scheduler.containers.registry import Containers
from scheduler.containers.removal import Removal
from scheduler.containers.steering import Steering
from scheduler.containers.swapping import Swapping
from scheduler.containers.takeover import TakeOver
from scheduler.containers.terminator import Terminator
from scheduler.core.events import GpuSeen, PreemptionChanged, Ticked
from scheduler.core.state import Mode, Preemption, State
from scheduler.engines.base import Engine
from scheduler.engines.host_memory import HostMemory
from scheduler.engines.runtime_environment import keep_copy
from scheduler.gpus import Gpus, Reading
from scheduler.monitors.activity import Activity
from scheduler.monitors.anchoring import Anchoring
from scheduler.monitors.bypass import Bypass
from scheduler.monitors.cards.service import Service
from scheduler.monitors.contexts import Contexts
from scheduler.monitors.fair_share import FairShare
from scheduler.monitors.health import Health
from scheduler.monitors.housekeeping import Housekeeping
from scheduler.monitors.idle import Idle
from scheduler.monitors.measure import Measure
from scheduler.monitors.reservations import Reservations
from scheduler.monitors.samples import History
from scheduler.monitors.status_publisher import StatusPublisher
from scheduler.monitors.time_limits import TimeLimits
from scheduler.monitors.turns.computing import Computing
from scheduler.monitors.turns.shares import Shares
from scheduler.monitors.turns.sharing import Sharing
from scheduler.monitors.using import Using
from scheduler.monitors.verifying import Verifying
from scheduler.plugins import Plugin
from scheduler.sessions.broker import Broker, Listeners
from scheduler.sessions.grants import Grants
from scheduler.sessions.processes import Sessions
from scheduler.sessions.reaper import Reaper
from scheduler.sessions.roster import Roster
from scheduler.sessions.server import Server
from scheduler.shared import SharedParts
from scheduler.store import Store
from scheduler.watchdog import Watchdog
from web.spec.inside.reserved import SFTP


class Components:
    """`put_together` makes them, once the cards, the records and the engine are there."""

    home: Path
    gpus: Gpus
    store: Store
    engine: Engine
    plugin: Plugin
    card: CardAccess
    watchdog: Watchdog

    def put_together(self, policy: str) -> None:
        """Nothing is done yet. What is called before it is made here is called by name, and later."""
        gpus, engine, store = self.gpus, self.engine, self.store
        # Whether memory can be moved is found out as it starts (say_who_gives_way); nobody is asked to move before.
        state = State(policy=policy, preemption=Preemption(able=False))
        self.broker = broker = Broker(store, gpus.contexts, state, Listeners(
            changed=self._changed,
            answered=lambda live: self.sessions.answered(live),
            restore=lambda container: self.swapping.swap_in(container),
            preempt=lambda effect: self.swapping.preempt(effect),
            promised=lambda: self.planner.promised(),
            took=store.figures.decisions.note,
        ))  # fmt: skip
        self.forecasts = Forecasts(broker, store)
        self.report = StatusPublisher(broker, self.forecasts, store)
        self.roster = Roster(broker)
        self.grants = Grants(self.home / "grants")
        self.sessions = Sessions(
            broker, self.roster, self.grants, engine.owns, lambda session: self.reaper.add(session),
            owes=lambda owner, gpus: self.turns.owes(owner, gpus),
        )  # fmt: skip
        self.reaper = Reaper(gpus, self.sessions.gone)
        self.server = Server(self.home / "sockets", self.sessions, sftp=_sftp_in(self.home))
        self.shared = shared = SharedParts(self.home, gpus, engine, store, broker, self.roster, self.server)
        self.consoles = Consoles(engine, broker, self.home)
        self.relay = Relay(self.home, lambda key: store.node(link_key=key))
        self.memory = HostMemory()
        self.intents = Intents(store)
        self.dispatcher = Dispatcher(engine.placer, engine, store) if engine.placer else None
        self.removal = Removal(engine, self.intents, store)
        self.containers = Containers(
            shared, self.removal, self.memory, over=lambda container: self.planner.ended(container)
        )
        self.take_over = TakeOver(shared, self.containers, self.sessions)
        self.launcher = Launcher(shared, self.containers, self.consoles, self.intents)
        self.turns = TurnPlayer(
            self.card.turns, self.card.guardian,
            pids=lambda container: self.computing.pids(container),
            report=lambda container, why: self.sharing.report(container, why),
            gates=lambda container: self.computing.gates(container),
        )  # fmt: skip
        self.ender = Terminator(shared, self.intents, self.turns)
        self.swapping = Swapping(
            shared, self.card.moves, self.turns,
            end=lambda live, reason: self.ender.end(live, reason=reason), moved=self.say_who_gives_way,
            reassign=lambda live, *move: self.sessions.reassign(live, *move),
        )  # fmt: skip
        self.plugin.meet(shared, self.containers, self.ender, self.turns)
        self.bypass = Bypass(self.ender, broker, store)
        self.computing = Computing(gpus, broker, self.turns, self.bypass.computes_stopped)
        self.sharing = Sharing(gpus, self.turns, self.computing, broker, store)
        self.steering = Steering(shared, self.containers, self.swapping, self.turns, self.computing.changed)
        self.service = Service(gpus, broker, store, move=lambda live, *move: self.steering.move_off(live, *move))
        self.commands = Commands(shared, self.containers, Actions(
            self.launcher, self.dispatcher, self.steering, self.ender, self.removal, self.sharing.set_mode,
            self.service,
        ))  # fmt: skip
        self.planner = Planner(shared, self.commands.wake)
        self.fair_share = FairShare(broker, store)
        self.reservations = Reservations(broker, store, self.ender)
        self.housekeeping = Housekeeping(store)
        self.anchoring = Anchoring(store)
        self.verifying = Verifying(store)
        self.health = Health(store, engine)
        self.time_limits = TimeLimits(self.ender, self.containers, store)
        self.shares = Shares(broker, store, self.sharing.standing)
        self.using = Using(engine, broker, store)
        self.history = History(broker, store, self.shares, self.using)
        self.idle = Idle(self.intents, broker, store, self.turns.is_stopped)
        self.activity = Activity(broker, self.home / "habits")
        self.measure = Measure(shared, self.sessions.end_replaced, self.bypass.look, self._measured)
        self.contexts = Contexts(gpus, store)
        self.leftovers = GarbageCollector(self.containers, self.launcher, self.removal, store)
        for card in gpus.cards.values():
            self.broker.tell(GpuSeen(broker.now(), card.uuid, card.capacity(0), card.capacity(0)))

    def _changed(self, container: str) -> None:
        self.report.changed(container)
        self.planner.changed(container)

    async def _measured(self, readings: Mapping[str, Reading]) -> None:
        self.report.show_gpus()
        self.health.see(self.gpus.cards, readings)
        self.service.see(readings, self.gpus.lost)
        self.plugin.see(readings)
        self.history.write(readings)
        note_movable(self.broker, self.store)
        await self.idle.look(readings)
        await self.activity.look()

    def say_who_gives_way(self) -> None:
        """To the core, and what that costs as far as it is known."""
        speeds, minutes = self.swapping.speeds, settings.GPUSHARE_IDLE_MINUTES
        stays = bool(self.swapping.why_not) or self.swapping.cards.refused
        rule = Preemption(
            mode=Mode.OFF if self.swapping.why_not else Mode(settings.GPUSHARE_GIVE_WAY),
            idle=60 * minutes or math.inf,
            rotate=60 * settings.GPUSHARE_ROTATE_AFTER,
            out=speeds.rate("out"),
            back=speeds.rate("back"),
            memory=self.swapping.budget,
            move_share=0.0 if stays else settings.GPUSHARE_MOVE_SHARE / 100,
            able=not self.swapping.why_not,
        )
        self.broker.tell(PreemptionChanged(self.broker.now(), rule))
        self.store.node(moved=dict(speeds.moved))

    def tick(self) -> None:
        if self.broker.state.waiting or self.broker.state.reserves:
            self.broker.tell(Ticked(self.broker.now()))
            self.sessions.tick()
        self.broker.records.tick()

    def prove(self) -> None:
        """systemd's watchdog hears of decisions really made: a loop that turns but cannot decide is started again."""
        self.broker.tell(Ticked(self.broker.now()))
        notify.tell("WATCHDOG=1")

    def live(self) -> None:
        """A sign of life, and everything that changes without a message: use inside leases above all."""
        late = round(self.watchdog.take_worst(), 3)
        self.store.node(
            seen_at=clock.now(), engine_error=self.engine.away[:500], late=late,
            figures=self.store.figures.as_dict(
                **self.store.progress(), turns=self.turns.given, swap_memory=self.swapping.budget
            ),
        )  # fmt: skip
        self.report.publish()
        self.memory.look()

    async def follow_engine(self) -> None:
        async for status in self.engine.changes():
            self.containers.apply_status(status)


def _sftp_in(home: Path) -> Path | None:
    """A copy whose second names may lie beside the sockets. None where it was not compiled."""
    program = Path(settings.GPUSHARE_BUILD, SFTP)
    return keep_copy(program, home / "shim") if program.exists() else None

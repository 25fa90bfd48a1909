"""One event being handled: the state so far, the effects so far, and what follows from a change by itself."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isfinite
from typing import Any

from scheduler.core import admission, changes, expected, moves, policies, reserved, safety
from scheduler.core.effects import (
    Admitted,
    Effect,
    Granted,
    Pressure,
    Promised,
    Reason,
    Refused,
    Rejected,
    Restore,
    Suspended,
    TakeBack,
)
from scheduler.core.events import Event, SwapInRequested
from scheduler.core.people import heads
from scheduler.core.state import Asking, Container, Request, Stage, State


class Step:
    """Handlers change `state`, add the GPUs that the change concerns to `touched`, and say if it was `disturbed`.

    `finish` does the rest.
    """

    def __init__(self, state: State) -> None:
        self.state = self._before = state
        self.effects: list[Effect] = []
        self.touched: set[str] = set()
        self.disturbed = False  # something happened that no decision could have prevented
        self._settled: set[tuple[int, int]] = set()  # calls whose last awaited headroom this event has returned
        self._idle: set[str] = set()  # GPUs whose idle headroom is to be taken back
        self.timely = False  # time has passed or a transfer has ended: somebody may have to give way
        self.came: set[str] = set()  # containers of which something swapped out has come back, or is gone

    def advance(self, now: float) -> None:
        if isfinite(now) and now > self.state.now:
            self.state = replace(self.state, now=now)

    def refuse(self, reason: Reason, explanation: str, container: str | None = None) -> None:
        self.effects.append(Refused(reason, explanation, container))

    def known(self, container: str, done: str) -> Container | None:
        """The container that an event names; None, and the event is refused, if there is none."""
        known = self.state.containers.get(container)
        if known is None:
            text = f"Container {container} cannot be {done}: it has ended or never was."
            self.refuse(Reason.UNKNOWN, text, container)
        return known

    def put(self, container: Container) -> None:
        """Replaces a container, where that may let somebody on its GPUs be served."""
        self.state = changes.put_container(self.state, container)
        self.touched.update(container.quota)

    def finish(self) -> None:
        """Carries out what follows from the change: ends of waits, grants, answers, flags."""
        if self.disturbed or not self.state.calm:
            self.state = replace(self.state, calm=safety.calm(self.state))
        self._forget_expected()
        while True:
            self._expire()
            touched, self.touched = self.touched, set()
            self._serve(touched)
            self._settle()
            self._decide()
            if not self.touched:
                break
        self._press()
        self._restore()
        self.state = heads.elect(self.state)
        queue = self._before.waiting
        if self.state.waiting is not queue and self.state.waiting == queue:
            # A call that was granted at once came and went: who looks at the queue need not look again.
            self.state = replace(self.state, waiting=queue)

    # ---- calls ----

    def wait(self, request: Request) -> None:
        """Puts a call into the queue. It is suspended only when the headroom of all linked GPUs has been taken back."""
        awaiting = frozenset(safety.linked(self.state, [request.gpu]))
        queue = self.state.waiting
        # A call that waited for the last scheduler already has its place among those that came after it.
        later = (i for i, other in enumerate(queue) if not other.placed and other.since > request.since)
        self.state = changes.enqueue(self.state, replace(request, awaiting=awaiting), next(later, len(queue)))
        self._idle |= awaiting
        self.touched.add(request.gpu)

    def reject(self, request: Request, reason: Reason) -> None:
        self.state = changes.without(self.state, request)
        self.touched.add(request.gpu)  # it may have been the one that others queued behind
        asked = request.session, request.serial, request.container, request.gpu, request.bytes
        self.effects.append(Rejected(*asked, reason, self._end_wait(request), was_suspended=request.suspended))

    def reject_killed(self, requests: Iterable[Request]) -> None:
        for request in list(requests):
            self.reject(request, Reason.KILLED)

    def _end_wait(self, request: Request) -> float:
        waited = max(0.0, self.state.now - request.since)
        if request.suspended:
            container = self.state.containers[request.container]
            self.state = changes.put_container(self.state, replace(container, waited=container.waited + waited))
        return waited

    def _expire(self) -> None:
        """Ends the waits whose time is over, and those that their whole quota has no room for."""
        containers = self.state.containers  # a rejection changes no quota and no limit
        if containers is self._before.containers and self.state.now == self._before.now and not self._idle:
            return  # neither a quota nor the time has changed, and no call has come
        for request in self.state.waiting:
            if request.back:
                continue
            container = containers[request.container]
            if request.bytes > container.quota[request.gpu]:
                self.reject(request, Reason.OVER_QUOTA)
            elif container.max_wait is not None and self.state.now - request.since >= container.max_wait:
                self.reject(request, Reason.WAITED_TOO_LONG)

    # ---- over a restart ----

    def expect_no_more(self, name: str) -> None:
        """It has asked; with the last of them, the queue is as it was."""
        if name in self.state.expected.containers:
            self.expect(expected.without(self.state, frozenset([name])))

    def expect(self, after: State) -> None:
        """Others are expected from now on, or fewer: who was held up for them is tried."""
        concerned = self.state.expected.containers | after.expected.containers
        self.state = after
        for name in concerned & after.containers.keys():
            self.touched.update(after.containers[name].quota)
        for request in self.state.waiting:
            if request.gpu in self.touched:
                self._judge_if_it_fails(request)

    def _forget_expected(self) -> None:
        """Those whose time is over, who have ended, or are being ended, or of whom no process is left to ask."""
        named = self.state.expected.containers
        late = self.state.now >= self.state.expected.until
        if gone := frozenset(name for name in named if late or not self._may_ask(name)):
            self.expect(expected.without(self.state, gone))

    def _may_ask(self, name: str) -> bool:
        container = self.state.containers.get(name)
        return container is not None and not container.killed and bool(container.sessions)

    # ---- granting ----

    def _serve(self, gpus: set[str]) -> None:
        wanted = {request.gpu for request in self.state.waiting}
        for gpu in safety.linked(self.state, gpus) if wanted and gpus else ():
            while gpu in wanted and self._serve_one(gpu):
                pass

    def _serve_one(self, gpu: str) -> bool:
        self.state = heads.elect(self.state)
        for request in policies.order(self.state, gpu):
            after = self._after(request, request.bytes)
            if after is not None:
                self._grant(request, after)
                return True
        return False

    def _after(self, request: Request, amount: int) -> State | None:
        """The state after lending `amount`, or None if that must not be."""
        container = self.state.containers[request.container]
        room = reserved.free(self.state, request.gpu, container.owner)
        leased = container.leased.get(request.gpu, 0)
        if container.guaranteed:  # it takes from its own first, whatever is kept for others since
            own = safety.held(container, request.gpu) - leased
            room = max(room, min(0, safety.free(self.state, request.gpu))) + own
        if container.killed or amount > room or self._over_quota(request, amount):
            return None
        if request.session < 0:
            if any(reserved.free(self.state, gpu, container.owner) < size for gpu, size in container.quota.items()):
                return None
            others = [each for each in self._with(request) if each is not request]
            if not all(each in policies.order(self.state, each.gpu) for each in others):
                return None
            after = changes.put_container(self.state, replace(container, guaranteed=True, lapses=True))
        else:
            after = changes.lend(self.state, request.session, request.gpu, amount)
        if request.back:
            after = changes.bring_back(after, request)
        return after if safety.harmless(self.state, after, container.id) else None

    def _with(self, request: Request) -> list[Request]:
        """What is served together: all calls of a stand-in, a program's each by itself."""
        return [request] if request.session >= 0 else [r for r in self.state.waiting if r.session == request.session]

    def _over_quota(self, request: Request, amount: int) -> bool:
        """Whether `amount` more is more than its container may have. What it had before it was swapped out it may."""
        container = self.state.containers[request.container]
        return not request.back and not changes.has_room(container, request.gpu, amount)

    def _grant(self, request: Request, after: State) -> None:
        container, is_program = after.containers[request.container], request.session >= 0 and not request.back
        if is_program and (container.lapses or not self.state.containers[container.id].leased):
            guaranteed = container.guaranteed and not container.lapses
            began = replace(container, began=self.state.now, guaranteed=guaranteed, lapses=False)
            after = changes.put_container(after, began)
            self.touched.update(began.quota)  # it holds now: its other calls are to be tried, and what has lapsed
        if request.suspended:
            self.touched.add(request.gpu)  # calls for linked GPUs may have queued behind it
        after = heads.served(after, request)
        for each in self._with(request):
            after = changes.without(after, each)
        self.state = replace(after, grants=after.grants + 1)
        waited = self._end_wait(request)
        if request.back:
            self.came.add(request.container)
            self.touched.update(self.state.containers[request.container].quota)
        if request.session < 0:
            self.effects.append(Promised(request.container))
            return
        asked = request.session, request.serial, request.container, request.gpu, request.bytes
        self.effects.append(Granted(*asked, self._extra(request), waited, was_suspended=request.suspended))

    def _extra(self, request: Request) -> int:
        """Lends headroom beyond the call, and says how much.

        Nothing while anybody waits, or is about to. Where all quotas fit together nobody can ever be short, so all that
        is left of the quota goes out at once, in equal parts to the container's sessions; elsewhere as much again as
        was asked, so that a growing program asks a number of times that grows with the logarithm of what it takes.
        """
        state, gpu = self.state, request.gpu
        if request.back or (state.waiting and gpu in safety.linked(state, {other.gpu for other in state.waiting})):
            return 0
        if not all(expected.is_complete(state, each) for each in safety.linked(state, [gpu])):
            return 0
        container, card = state.containers[request.container], state.gpus[gpu]
        has = container.leased.get(gpu, 0) + container.out.get(gpu, 0)
        extra = (container.quota[gpu] - has) // len(container.sessions)
        if sum(state.containers[name].quota[gpu] for name in card.members) > card.capacity:
            extra = min(extra, request.bytes)
        after = self._after(request, extra) if extra > 0 else None
        if after is None:
            return 0
        self.state = after
        return extra

    # ---- taking back headroom ----

    def returned(self, gpu: str) -> None:
        """The idle headroom that was asked back for this GPU has been returned."""
        awaiting = [request for request in self.state.waiting if gpu in request.awaiting]
        for request in awaiting:
            left = replace(request, awaiting=request.awaiting - {gpu})
            self._replace(request, left)
            if not left.awaiting:
                self._settled.add((request.session, request.serial))
        asking = tuple(replace(each, awaiting=each.awaiting - {gpu}) for each in self.state.asking)
        self.state = replace(self.state, asking=asking)

    def _settle(self) -> None:
        """All idle headroom is back: whoever is not served now is over quota, refused for shortage, or suspended."""
        for request in self.state.waiting if self._settled else ():
            if (request.session, request.serial) not in self._settled:
                continue
            if self._over_quota(request, request.bytes):
                self.reject(request, Reason.OVER_QUOTA)
            elif self._fails(request):
                self.reject(request, Reason.SHORTAGE)
            elif not request.suspended:
                self._replace(request, replace(request, suspended=True))
                its = Suspended(request.session, request.serial, request.container, request.gpu, request.bytes)
                self.effects += [its] if request.session >= 0 else []
        self._settled = set()

    def _fails(self, request: Request) -> bool:
        """Whether it is rejected rather than kept waiting. Not while its container is paused or moved."""
        container = self.state.containers[request.container]
        spared = request.back or container.paused or container.stage
        return container.fail_fast and not (spared or expected.holds_up(self.state, request))

    def judge_again(self, name: str) -> None:
        """It is neither paused nor moved any more: calls that were spared meanwhile are granted or fail."""
        for request in self.state.waiting:
            if request.container == name:
                self._judge_if_it_fails(request)

    def _judge_if_it_fails(self, request: Request) -> None:
        if not request.awaiting and self._fails(request):
            self._judge(request)

    def _judge(self, request: Request) -> None:
        self._replace(request, replace(request, awaiting=frozenset([request.gpu])))
        self._idle.add(request.gpu)

    def _replace(self, request: Request, by: Request) -> None:
        waiting = tuple(by if each is request else each for each in self.state.waiting)
        self.state = replace(self.state, waiting=waiting)

    def _press(self) -> None:
        """Keeps the pressure flags in step with the queue, and asks for the headroom that somebody is waiting for."""
        containers, known = self.state.containers, self._before.containers
        for request in self.state.waiting if containers is not known else ():
            container = containers[request.container]
            if container is known.get(container.id) or request.awaiting or request.back:
                continue
            if not changes.has_room(container, request.gpu, request.bytes):
                # Another call of the container was faster, or its quota shrank: over quota, unless headroom is idle.
                self._judge(request)
        before, now = self.state.pressed, frozenset(safety.linked(self.state, reserved.pressed(self.state)))
        if now != before:
            self.state = replace(self.state, pressed=now)
        awaited = {gpu for call in self.state.waiting for gpu in call.awaiting}
        awaited |= {gpu for asking in self.state.asking for gpu in asking.awaiting}
        self.effects.extend(Pressure(gpu, True) for gpu in sorted(now - before))
        self.effects.extend(TakeBack(gpu) for gpu in sorted(now - before | self._idle & awaited))
        self.effects.extend(Pressure(gpu, False) for gpu in sorted(before - now))

    # ---- swapping ----

    def swap_in(self, name: str, since: float) -> None:
        """Puts a call into the queue for each part that is out, in the place of whatever of it waits already."""
        container = self.state.containers[name]
        if container.stage is not Stage.OUT or container.killed:
            return
        since = min([since, *(r.since for r in self.state.waiting if r.container == container.id)])
        self.state = changes.put_container(self.state, moves.moved(container, SwapInRequested))
        self.came.add(container.id)
        self.expect_no_more(container.id)
        for key in container.sessions:
            out = self.state.sessions[key].out
            for serial, gpu in enumerate(container.quota, start=1):
                if gpu in out:
                    self.wait(Request(key, -serial, container.id, gpu, out[gpu], since, back=True))

    def stir(self, container: Container) -> None:
        """It computes or asks. What was preempted comes back by that; what a person has put out waits for a person."""
        if container.idle_since is not None:
            self.state = changes.put_container(self.state, replace(container, idle_since=None))
        if not container.paused:
            self.swap_in(container.id, self.state.now)

    def call_off(self, container: Container) -> None:
        """Nothing of it is asked back any more."""
        for request in self.state.waiting:
            if request.container == container.id and request.back:
                self._end_wait(request)
                self.state = changes.without(self.state, request)
        self.touched.update(container.quota)

    def _restore(self) -> None:
        for name in sorted(self.came & self.state.containers.keys()):
            container = self.state.containers[name]
            if container.stage is Stage.RETURNING and not container.out:
                self.state = changes.put_container(self.state, moves.moved(container, Restore))
                self.effects.append(Restore(name))

    # ---- launches and quotas ----

    def ask(self, wanted: Container) -> None:
        """Accepts or refuses a container as `wanted`; later, if idle headroom has to be taken back first."""
        if admission.blocked(self.state, wanted) is None:
            self.admit(wanted)
            return
        awaiting = frozenset(safety.linked(self.state, wanted.quota))
        self.state = replace(self.state, asking=(*self.state.asking, Asking(wanted, awaiting)))
        self._idle |= awaiting

    def admit(self, wanted: Container) -> None:
        self.state = changes.put_container(self.state, wanted)
        if wanted.paused or any(quota > self.state.gpus[gpu].capacity for gpu, quota in wanted.quota.items()):
            self.state = replace(self.state, calm=False)  # it cannot end before it is resumed, or foreign memory goes
        self.touched.update(wanted.quota)
        self.effects.append(Admitted(wanted.id))

    def drop_asking(self, container: str, explanation: str) -> None:
        """Answers whatever is still asked for a container that is ending."""
        for asking in self.state.asking:
            if asking.container.id == container:
                self.refuse(Reason.KILLED, explanation, container)
        self.state = replace(self.state, asking=tuple(a for a in self.state.asking if a.container.id != container))

    def _decide(self) -> None:
        for asking in [each for each in self.state.asking if not each.awaiting]:
            self.state = replace(self.state, asking=tuple(each for each in self.state.asking if each is not asking))
            wanted = asking.container
            if known := self.state.containers.get(wanted.id):
                wanted = replace(known, quota=wanted.quota)
            refused = admission.impossible(self.state, wanted) or admission.blocked(self.state, wanted)
            if refused is not None:
                self.effects.append(refused)
            else:
                self.admit(wanted)


Handlers = dict[type[Event], Callable[[Step, Any], None]]

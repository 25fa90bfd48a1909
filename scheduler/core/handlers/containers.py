"""Containers come, change and go."""

from dataclasses import replace
from math import inf, isfinite

from scheduler.core import admission, changes, safety
from scheduler.core.effects import Admitted, Reason
from scheduler.core.events import (
    ContainerAdded,
    ContainerEnded,
    ContainerKilled,
    ContainerPaused,
    ContainerResumed,
    PriorityChanged,
    QuotaChanged,
    StandIn,
)
from scheduler.core.state import HIGHEST_PRIORITY, LOWEST_PRIORITY, Container, Request, Stage
from scheduler.core.step import Handlers, Step


def _container_added(step: Step, event: ContainerAdded) -> None:
    wanted = Container(
        id=event.container,
        quota=dict(event.quota),
        owner=event.owner,
        arrived=step.state.now,
        priority=event.priority,
        guaranteed=event.guaranteed,
        fail_fast=event.fail_fast,
        max_wait=event.max_wait,
        paused=event.paused,
        preemptible=event.preemptible,
        across=event.across,
    )
    known = step.state.containers.get(wanted.id)
    if known and known.stands_in:
        _gone(step, known)  # in the same event, so that nobody else is served before the container is there
        if known.guaranteed and (known.quota, known.owner) == (wanted.quota, wanted.owner):
            step.admit(replace(wanted, guaranteed=True, lapses=not wanted.guaranteed))
            return
        known = None
    if known:
        if known.quota == wanted.quota and known.owner == wanted.owner:
            step.effects.append(Admitted(known.id))
        else:
            step.refuse(Reason.INVALID, f"Container {known.id} is already here, with other settings.", known.id)
    elif any(asking.container.id == wanted.id for asking in step.state.asking):
        return  # repeated while the first is being decided
    elif refused := admission.impossible(step.state, wanted, running=event.running):
        step.effects.append(refused)
    elif event.running:
        step.admit(wanted)
        step.disturbed = True  # it is there whether or not that is safe
    else:
        step.ask(wanted)


def _stand_in(step: Step, event: StandIn) -> None:
    known = step.state.containers.get(event.container)
    wanted = Container(
        event.container, dict(event.quota), event.owner, step.state.now, event.priority, preemptible=False,
        stands_in=True,
    )  # fmt: skip
    if known and not known.stands_in:
        return  # its container is there
    if refused := admission.impossible(step.state, wanted):
        step.effects.append(refused)
        return
    session = min([0, *(request.session for request in step.state.waiting)]) - 1  # before the one that it replaces goes
    if known:
        _gone(step, known)
    step.state = changes.put_container(step.state, wanted)
    step.disturbed |= any(size > step.state.gpus[gpu].capacity for gpu, size in wanted.quota.items())
    since = min(event.since, step.state.now) if isfinite(event.since) else step.state.now
    for serial, (gpu, size) in enumerate(wanted.quota.items()):
        step.wait(Request(session, serial, wanted.id, gpu, size, since))


def _quota_changed(step: Step, event: QuotaChanged) -> None:
    known = step.known(event.container, "changed")
    if known is None:
        return
    if event.quota.keys() != known.quota.keys():
        step.refuse(Reason.INVALID, "A change of quota must name the GPUs that the container has.", known.id)
        return
    wanted = replace(known, quota=dict(event.quota))
    if refused := admission.impossible(step.state, wanted):
        step.effects.append(refused)
    else:
        step.ask(wanted)


def _priority_changed(step: Step, event: PriorityChanged) -> None:
    known = step.known(event.container, "given a priority")
    if known is None:
        return
    if not LOWEST_PRIORITY <= event.priority <= HIGHEST_PRIORITY:
        step.effects.append(admission.bad_priority(known.id, event.priority))
        return
    step.put(replace(known, priority=event.priority, across=event.across))
    step.state = replace(step.state, people=step.state.people._replace(look=-inf))  # its calls may be due now


def _container_paused(step: Step, event: ContainerPaused) -> None:
    known = step.state.containers.get(event.container)
    if known and not known.killed:  # a kill ends a paused container too
        step.put(replace(known, paused=True))
        step.disturbed = True


def _container_resumed(step: Step, event: ContainerResumed) -> None:
    known = step.state.containers.get(event.container)
    if known and known.paused:
        step.put(replace(known, paused=False))
        step.swap_in(known.id, step.state.now)
        step.judge_again(known.id)


def _container_killed(step: Step, event: ContainerKilled) -> None:
    step.drop_asking(event.container, "The container is being ended.")
    if known := step.state.containers.get(event.container):
        step.put(replace(known, killed=True, paused=False, stage=Stage.OUT if known.out else Stage.HERE))
        step.reject_killed(r for r in step.state.waiting if r.container == known.id)


def _container_ended(step: Step, event: ContainerEnded) -> None:
    step.drop_asking(event.container, "The container has ended.")
    if known := step.state.containers.get(event.container):
        _gone(step, known)


def _gone(step: Step, known: Container) -> None:
    step.reject_killed(r for r in step.state.waiting if r.container == known.id)
    step.touched.update(safety.linked(step.state, known.quota))
    step.state = changes.drop_container(step.state, step.state.containers[known.id])


HANDLERS: Handlers = {
    ContainerAdded: _container_added,
    StandIn: _stand_in,
    QuotaChanged: _quota_changed,
    PriorityChanged: _priority_changed,
    ContainerPaused: _container_paused,
    ContainerResumed: _container_resumed,
    ContainerKilled: _container_killed,
    ContainerEnded: _container_ended,
}

"""A card was seen, taken out of service, or found to hold more or less than was charged."""

from dataclasses import replace

from scheduler.core import changes
from scheduler.core.events import GpuDrained, GpuSeen, OverheadMeasured, Returned
from scheduler.core.state import Gpu
from scheduler.core.step import Handlers, Step


def _gpu_seen(step: Step, event: GpuSeen) -> None:
    capacity = max(0, event.capacity)
    known = step.state.gpus.get(event.gpu) or Gpu(event.gpu, 0)
    seen = replace(known, capacity=capacity, most=max(capacity, event.most or 0))
    step.state = replace(step.state, gpus={**step.state.gpus, event.gpu: seen})
    step.touched.add(event.gpu)
    step.disturbed = True


def _gpu_drained(step: Step, event: GpuDrained) -> None:
    if event.gpu in step.state.gpus:
        gpu = replace(step.state.gpus[event.gpu], drained=event.drained)
        step.state = replace(step.state, gpus={**step.state.gpus, event.gpu: gpu})


def _returned(step: Step, event: Returned) -> None:
    if event.gpu not in step.state.gpus:
        return
    for session, amount in event.taken.items():
        if session in step.state.sessions and amount > 0:
            step.state = changes.lend(step.state, session, event.gpu, -amount)
            step.touched.add(event.gpu)
    if event.all:
        step.returned(event.gpu)


def _overhead_measured(step: Step, event: OverheadMeasured) -> None:
    session = step.state.sessions.get(event.session)
    if session and event.gpu in step.state.containers[session.container].quota:
        step.state = changes.lend(step.state, session.id, event.gpu, event.change)
        step.disturbed = True
        step.touched.add(event.gpu)


HANDLERS: Handlers = {
    GpuSeen: _gpu_seen,
    GpuDrained: _gpu_drained,
    Returned: _returned,
    OverheadMeasured: _overhead_measured,
}

"""Is this step safe? The banker's check, over leases, for several GPUs, and for states that were disturbed.

A lease is used without asking, so every container is judged as if it used all of its lease, and as if it would ask for
its whole quota before it ends. A container is *completable* if, in some order, all containers before it can get their
whole quota and end, each giving back what it holds, and then it can get its own. The greedy order finds all of them:
what is free only grows as containers end, so a container that fits now fits later as well.

The rule: **a step is harmless if nobody who was completable before it is no longer completable after it.** As long as
nothing disturbs the state, everybody is completable, and this is exactly the banker's check. But memory can also vanish
(a foreign process takes it, a context is larger than thought, an admin pauses a container that holds some), and then
some containers are not completable any more. The rule does not freeze the rest: it forbids making things worse, and
nothing else, so nobody is held up by a container that waiting cannot help.

A paused container gives nothing back until it is resumed, and the time of that is not known. So there are two sets, and
a step must harm neither: those who can end while the paused stay paused, and those who can end once they are resumed.

Foreign memory leaves the card at a time that is not known, too. While it is there few containers may be completable, so
the set of the present capacity would permit almost any step, and the containers could deadlock once the foreign memory
has gone. So there is a third set, those who can end once all foreign memory is gone (`Gpu.most`), and a step must not
harm that either. Proof that this suffices: who is completable at a capacity depends on that capacity, the quotas and
the leases. Foreign memory changes neither quotas nor leases, so it leaves the third set as it is, and no harmless step
takes a container out of it. Whoever was completable on the card without foreign memory is so again when that has gone;
if the card was calm before it came, that is everybody. And the third set makes nobody wait for ever who is completable
now: the first container in the present order has a claim that fits now, so it fits with more room, and a grant to it is
harmless in each set. The three combine: paused or resumed, and with or without the foreign memory. What is *not*
covered: foreign memory that goes in part, and whose rest stays for good. Then some that wait may wait for that rest.

Only one container changes in a step. If that one is completable afterwards, the step is harmless: when it has ended,
what is free and who else holds what are the same as if the step had never been, so everybody's old order still works.
That is the short way out which makes a decision cheap: a container with a small claim is found early.

A state in which everybody is completable, nobody is paused and no GPU has more held than it has is *calm*
(`State.calm`). Harmless steps keep it so; then nobody else needs to be looked at than the container that moves: with
more room everybody is completable as well. Only what no decision can prevent ends it.

Cost: O(n log n) in the containers of one GPU. GPUs that share a container are looked at together; each has its queue by
claim, and a container ends when it has come up in all of its queues, so vectors need no repeated passes.
"""

from collections.abc import Collection, Iterator
from itertools import product

from scheduler.core.state import Container, Stage, State

NOTHING = -(1 << 64)  # a claim of nothing: it fits even where foreign memory has left less than nothing


def held(container: Container, gpu: str) -> int:
    """Bytes that nobody else can have: what was leased, or all of the quota if that is guaranteed."""
    leased = container.leased.get(gpu, 0)
    return max(leased, container.quota.get(gpu, 0)) if container.guaranteed else leased


def holds(container: Container) -> bool:
    """Whether it holds anything on any GPU; if not, it is a newcomer."""
    return container.guaranteed or any(container.leased.values())


def put_by(container: Container) -> bool:
    """Paused, or swapped out and not asked back: what it waits for is a person."""
    return container.paused or container.stage is Stage.OUT


def free(state: State, gpu: str) -> int:
    """Bytes of a GPU that nobody holds. Below zero when foreign memory has taken what was already leased."""
    card = state.gpus[gpu]
    return card.capacity - card.held


def linked(state: State, gpus: Collection[str]) -> list[str]:
    """These GPUs, and those that share a container with them, directly or through others; sorted."""
    found = {gpu for gpu in gpus if gpu in state.gpus}
    apart = [state.containers[name].quota.keys() for name in state.spanning] if found else []
    grown = True
    while grown and len(found) < len(state.gpus):
        grown = False
        for quota in apart:
            if not found.isdisjoint(quota) and not found.issuperset(quota):
                found |= quota
                grown = True
    return sorted(found)


def completable(
    state: State, gpus: Collection[str], *, resumed: bool = False, undisturbed: bool = False, until: str = ""
) -> set[str]:
    """The containers on these GPUs that can end in some order; stops early once `until` is among them.

    `resumed`: as if every paused container were resumed. `undisturbed`: as if all foreign memory were gone.
    """
    room: dict[str, int] = {}
    queues: dict[str, list[tuple[int, str, int]]] = {}
    for gpu in gpus:
        room[gpu] = free(state, gpu) + (_foreign(state, gpu) if undisturbed else 0)
        queue = queues[gpu] = []
        for name in state.gpus[gpu].members:
            container = state.containers[name]
            if resumed or not container.paused:
                quota, leased = container.quota[gpu], container.leased.get(gpu, 0)
                if container.out:  # with what its contexts were found to take since, that can be more than its quota
                    quota = max(quota, leased + container.out.get(gpu, 0))
                # `held` and the claim, spelled out: this is where a decision spends its time
                if leased >= quota:
                    queue.append((NOTHING, name, leased))
                elif container.guaranteed:  # the rest is reserved, and there as long as nobody foreign has taken it
                    queue.append((0, name, quota))
                else:
                    queue.append((quota - leased, name, leased))
        queue.sort(reverse=True)  # the smallest claim is at the end
    ended: set[str] = set()
    for name in _endings(state, room, queues):
        ended.add(name)
        if name == until:
            break
    return ended


def _foreign(state: State, gpu: str) -> int:
    """Bytes that the card has more when nothing foreign is on it."""
    card = state.gpus[gpu]
    return max(0, card.most - card.capacity)


def _endings(state: State, room: dict[str, int], queues: dict[str, list[tuple[int, str, int]]]) -> Iterator[str]:
    lacking: dict[str, int] = {}  # containers with several GPUs → on how many of them their claim does not fit yet
    holding: dict[tuple[str, str], int] = {}
    ready = list(queues)
    while ready:
        gpu = ready.pop()
        queue = queues[gpu]
        while queue and queue[-1][0] <= room[gpu]:
            _, name, holds = queue.pop()
            quota = state.containers[name].quota
            if len(quota) == 1:
                room[gpu] += holds
                yield name
                continue
            holding[name, gpu] = holds
            lacking[name] = lacking.get(name, len(quota)) - 1
            if lacking[name] == 0:
                for each in quota:
                    room[each] += holding[name, each]
                ready.extend(quota)
                yield name


def harmless(before: State, after: State, mover: str) -> bool:
    """Whether a step that changes one container, `mover`, takes from nobody the certainty that it can end."""
    near = after.containers[mover].quota
    if before.calm:
        # Everybody could end, so `mover` must still. Those who share its GPUs, and no others, mostly prove it already.
        return mover in completable(after, near, until=mover) or (
            bool(after.spanning) and mover in completable(after, linked(after, near), until=mover)
        )
    gpus = linked(after, near)
    paused = any(before.containers[name].paused for gpu in gpus for name in before.gpus[gpu].members)
    disturbed = any(_foreign(after, gpu) for gpu in gpus)
    for resumed, gone in product((False, True) if paused else (False,), (False, True) if disturbed else (False,)):
        then = completable(after, gpus, resumed=resumed, undisturbed=gone, until=mover)
        if mover not in then and not completable(before, gpus, resumed=resumed, undisturbed=gone) <= then:
            return False
    return True


def calm(state: State) -> bool:
    """What harmless steps keep so, and only disturbances end (see above)."""
    if any(container.paused for container in state.containers.values()):
        return False
    if any(free(state, gpu) < 0 for gpu in state.gpus):
        return False  # who has all of its quota can end, but not once it has given some back to what is lacking
    return len(completable(state, list(state.gpus))) == len(state.containers)

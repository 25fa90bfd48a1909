"""Every state of lease_model.py that can come about, and what must hold in it.

explore(World(...)) → how many states; raises Broken with the shortest way to one that must not be
"""

from tests.shim.lease_model import free, steps, unseen
from tests.shim.lease_world import RUNS, WAITS, World, held


class Broken(AssertionError):
    """A state that must not be."""


def wrong(world: World) -> str:
    """What is wrong with this state; nothing, if nothing is."""
    if held(world) + world.neighbour > world.capacity:
        return "more is held than there is"
    if world.accepted > world.granted:
        return "more was accepted than granted"
    if world.shown > world.most_used:
        return f"a peak of {world.shown} is shown, and {world.most_used} were used"
    if world.at != "rest":
        return ""
    if not world.lives:
        idle = world.capacity - world.neighbour
        stuck = not world.leased and any(size <= idle for _, size in world.queue)
        return f"the neighbour waits although the process is gone and {idle} are free" if stuck else ""
    if world.limit != world.bound or world.leased != world.bound + world.granted + world.measured:
        return "the scheduler and the page disagree"
    if world.leased - world.measured + world.neighbour > world.capacity:  # what was measured is a fact, not a grant
        return "more is leased than there is"
    if any(each.at != RUNS and each.at != WAITS for each in world.threads) or world.heard or world.said:
        return ""
    # Nobody is about to do anything: what the page says is what is so.
    shown = max(world.shown, world.taken + world.granted, world.peak[0] if unseen(world) else 0)
    if shown < world.most_held:
        return f"a peak of {world.most_held} is missed, and {shown} is shown"
    waiting = [index for index, each in enumerate(world.threads) if each.at == WAITS]
    if not waiting and world.taken + world.granted != held(world):
        return f"{world.taken + world.granted} are used by the page, and {held(world)} in truth"
    if waiting and not world.connected:
        return ""  # it is about to connect
    if any(not world.threads[index].asked for index in waiting):
        return ""  # it is about to ask
    idle = free(world) + max(0, world.limit - world.taken)
    calls = [world.threads[index].wants for index in waiting] + (
        [world.asks] if (-1, world.asks) in world.queue else []
    )
    if calls and min(calls) <= idle:
        return f"somebody waits for {min(calls)} although {idle} are idle"
    return ""


def explore(start: World, limit: int = 10**7) -> int:
    """Every state that can come about. Returns how many; raises Broken with the shortest way to one that must not."""
    came_from: dict[World, World | None] = {start: None}
    frontier = [start]
    while frontier:
        later = []
        for world in frontier:
            for reached in steps(world):
                if reached in came_from:
                    continue
                came_from[reached] = world
                if fault := wrong(reached):
                    raise Broken("\n".join([*_way(came_from, reached), fault]))
                later.append(reached)
        frontier = later
        if len(came_from) > limit:
            raise RuntimeError(f"more than {limit} states")
    return len(came_from)


def _way(came_from: dict[World, World | None], world: World) -> list[str]:
    lines: list[str] = []
    at: World | None = world
    while at is not None:
        before = came_from[at]
        changed = {
            name: value for name, value in at._asdict().items() if before is None or getattr(before, name) != value
        }
        lines.append(str(changed))
        at = before
    return lines[::-1]

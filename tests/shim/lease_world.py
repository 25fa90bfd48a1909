"""What lease_model.py's steps change: the lease page, and what both sides have in their memory."""

from typing import NamedTuple

RUNS, WAITS = "runs", "waits"  # a thread between its calls; a thread whose NEED is to be answered


class Thread(NamedTuple):
    at: str = RUNS  # the step that comes next
    wants: int = 0
    register: int = 0
    look: int = 0  # what it has read as `look` and `peak`
    seen: tuple[int, int] = (0, 0)
    holds: int = 0  # what it may use: the truth, which nobody sees
    calls: int = 1  # allocations that it may still make
    asked: bool = False  # on the present connection


class World(NamedTuple):
    capacity: int = 3
    sizes: tuple[int, ...] = (1, 2)  # what each thread allocates
    # the lease page
    taken: int = 0
    limit: int = 0
    bound: int = 0
    granted: int = 0
    accepted: int = 0
    measured: int = 0
    pressure: bool = False
    peak: tuple[int, int] = (0, 0)  # the most held, and the note's number
    look: int = 0
    # the process
    threads: tuple[Thread, ...] = (Thread(), Thread())
    lives: bool = True
    deaths: int = 1  # of the process, that may still come
    connected: bool = True
    heard: tuple[tuple[int, int], ...] = ()  # GRANTED frames on their way: (thread, bytes)
    said: tuple[tuple[int, int], ...] = ()  # NEED: (thread, bytes); RELEASED: (-1, 0)
    # the card and the neighbour
    more: int = 0  # what the card holds for the process beyond what it has charged itself
    neighbour: int = 0
    asks: int = 0  # what the neighbour asks for, and waits
    # the scheduler: its memory, which a kill empties
    at: str = "rest"
    then: str = ""
    call: tuple[int, int] = (-1, 0)  # what it has just read
    before: int = 0
    lowered: int = 0
    read: tuple[int, int] = (0, 0)  # what it has read as `peak`
    leased: int = 0  # Lease.granted
    unheard: int = 0
    queue: tuple[tuple[int, int], ...] = ()  # calls that wait: (thread, bytes); the neighbour's: (-1, bytes)
    kills: int = 1  # of schedulers, that may still come
    mores: int = 1  # times that the card may still show more
    frees: int = 1  # times that the neighbour may still ask, or free
    watched: bool = False  # whether anybody looks at the peak: if not, its steps are left out
    looks: int = 1  # that may still come
    most_held: int = 0  # since the last look while nobody was in the middle of a free: the truth, which nobody sees
    most_used: int = 0  # the same by the page
    shown: int = 0  # the most that looks have shown since then
    broken: str = ""


def put(world: World, index: int, **fields: object) -> World:
    threads = list(world.threads)
    threads[index] = threads[index]._replace(**fields)  # type: ignore[arg-type]
    return world._replace(threads=tuple(threads))


def held(world: World) -> int:
    return sum(each.holds for each in world.threads)

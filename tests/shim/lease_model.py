"""Both sides of one lease, instruction by instruction: every interleaving, and every death at every instruction.

One process with two threads shares a card with a neighbour. Each line that touches the page, sends, or hears is a step,
under the name of the function that takes it (shim/lease.c, shim/client.c; scheduler/sessions: lease_pages.Lease,
broker.Broker, processes.Sessions); everything between two such lines is seen by nobody else. After any step the
scheduler may be killed, and another takes over; after any step the process may be killed. What a program, a neighbour
or the card does of itself may come at any moment, or never.

lease_world.py is what they change; lease_explorer.py goes through all of it. `broken` names steps that are left out or
done in another order: each must be found out. Sizes are units.
"""

from collections.abc import Iterator

from tests.shim.lease_world import RUNS, WAITS, Thread, World, held, put

TAKING_OVER = ("lease_settle", "Lease.taken_over")  # before a socket is open


# ---- the process: shim/lease.c, shim/client.c -----------------------------------------------------------------------


def thread(world: World, index: int) -> Iterator[World]:
    me = world.threads[index]
    match me.at:
        case "runs":
            if me.calls:
                yield put(world, index, at="lease_reserve: load taken", wants=world.sizes[index], calls=me.calls - 1)
            if me.holds:
                free = "lease_release: load accepted" if world.watched else "lease_release: taken -="
                free = "lease_release: load pressure" if world.broken == "pressure first" else free
                yield put(world, index, at=free, wants=me.holds, holds=0)  # the real free has returned
        case "lease_reserve: load taken":
            yield put(world, index, at="lease_reserve: load limit", register=world.taken)
        case "lease_reserve: load limit":
            enough = me.register + me.wants <= world.limit
            yield put(world, index, at="lease_reserve: swap taken" if enough else "client_need")
        case "lease_reserve: swap taken":
            if world.taken != me.register:
                yield put(world, index, at="lease_reserve: load taken")
            else:
                after = me.register + me.wants
                moved = put(world._replace(taken=after), index, at="lease_reserve: load limit again", register=after)
                yield moved if world.broken != "one look" else put(moved, index, at=RUNS, holds=me.holds + me.wants)
        case "lease_reserve: load limit again":
            if me.register <= world.limit:
                yield put(world, index, at=RUNS, holds=me.holds + me.wants)
            else:
                yield put(world, index, at="undo: taken -=")
        case "undo: taken -=":
            yield put(world._replace(taken=world.taken - me.wants), index, at="lease_reserve: load taken")
        case "lease_release: load accepted":
            yield put(world, index, at="lease_release: taken -= and note", register=world.accepted)
        case "lease_release: taken -= and note":
            accepted = me.register if world.broken != "accepted read late" else 0
            lower = world._replace(taken=world.taken - me.wants)
            yield put(lower, index, at="note_peak: load look", register=world.taken + accepted)
        case "note_peak: load look":
            late = world.accepted if world.broken == "accepted read late" else 0
            yield put(world, index, at="note_peak: load peak", look=world.look, register=me.register + late)
        case "note_peak: load peak":
            look = me.look if world.broken != "look read late" else -1
            notable = me.register > world.peak[0] or world.peak[1] == look
            at = "note_peak: swap peak" if notable else "lease_release: load pressure"
            if world.broken == "look read late" and not notable:
                at = "late look"
            yield put(world, index, at=at, seen=world.peak)
        case "late look":
            at = "note_peak: swap peak" if me.seen[1] == world.look else "lease_release: load pressure"
            yield put(world, index, at=at)
        case "note_peak: swap peak":
            if world.peak != me.seen and world.broken != "noted without a look":
                again = "note_peak: load look" if world.broken != "accepted read late" else "note_peak: load peak"
                yield put(world, index, at=again)
            else:
                noted = world._replace(peak=(me.register, world.peak[1] + 1))
                yield put(noted, index, at="lease_release: load pressure", seen=(0, 0), look=0)
        case "lease_release: taken -=":
            at = (
                "client_released"
                if me.register and world.broken == "pressure first"
                else "lease_release: load pressure"
            )
            if world.broken == "pressure first" and not me.register:
                at = RUNS
            yield put(world._replace(taken=world.taken - me.wants), index, at=at)
        case "lease_release: load pressure":
            if world.broken == "pressure first":
                yield put(world, index, at="lease_release: taken -=", register=int(world.pressure))
            else:
                yield put(world, index, at="client_released" if world.pressure else RUNS)
        case "client_released":
            if not world.connected and world.at.startswith(TAKING_OVER):
                yield put(world, index, at=RUNS)  # nobody listens
            elif world.connected or (world.at == "rest" and not _locked(world)):
                world = world if world.connected else _connect(world)
                yield put(world._replace(said=(*world.said, (-1, 0))), index, at=RUNS)
        case "client_need":
            yield put(world, index, at=WAITS, asked=False)
        case "waits":
            if world.connected and not me.asked:
                yield put(world._replace(said=(*world.said, (index, me.wants))), index, asked=True)
        case "answer: lease_accept":
            yield put(world._replace(accepted=world.accepted + me.wants), index, at="answer: WIRE_OK")
        case "answer: WIRE_OK":
            yield put(world, index, at=RUNS, holds=me.holds + me.wants)


def _locked(world: World) -> bool:
    """Whether a thread holds the session's lock, with which alone anybody reads or connects."""
    return any(each.at.startswith("answer") for each in world.threads)


def reader(world: World) -> Iterator[World]:
    """Whichever thread reads for all: what has come first, then the end of the connection, then a new one."""
    if _locked(world):
        return
    if world.heard:
        (index, size), *rest = world.heard
        assert world.threads[index].at == WAITS
        assert world.threads[index].wants == size
        at = "answer: lease_accept"
        if world.broken == "answered before accepted":
            at = "answer: WIRE_OK"
            world = world._replace(accepted=world.accepted)
        yield put(world._replace(heard=tuple(rest)), index, at=at)
    elif not world.connected and world.at == "rest" and any(each.at == WAITS for each in world.threads):
        yield _connect(world)


def _connect(world: World) -> World:
    """dial: HELLO, and Lease.said_hello."""
    unheard = world.granted - world.accepted if world.broken != "sent at take-over" else world.unheard
    if world.broken == "not sent again":
        unheard = 0
    world = world._replace(connected=True, unheard=unheard, heard=(), said=())
    for index, each in enumerate(world.threads):
        if each.at == WAITS:
            world = put(world, index, asked=False)  # hang_up
    return world


# ---- the scheduler: lease.c, lease_pages.py, broker.py --------------------------------------------------------------


def free(world: World) -> int:
    return world.capacity - world.leased - world.neighbour


def scheduler(world: World) -> Iterator[World]:
    match world.at:
        case "rest":
            yield from _hears(world)
        case "Broker.need":
            index, size = world.call
            if any(asked == index for asked, _ in world.queue) or not world.connected:
                yield world._replace(at="serve", then="rest")  # asked again after a lost connection; it keeps its place
            elif 0 < size <= world.unheard:  # Lease.tell_again
                heard = (*world.heard, (index, size)) if world.connected else world.heard
                yield world._replace(unheard=world.unheard - size, heard=heard, at="rest")
            else:  # Lease.give_up_unheard
                lost = world.unheard
                world = world._replace(unheard=0, granted=world.granted - lost, leased=world.leased - lost)
                yield world._replace(queue=(*world.queue, (index, size)), at="serve", then="Broker._press")
        case "Broker._press":
            if world.broken == "pressure after":
                yield world._replace(at="lease_take_back: load limit, taken", then="late")
            else:
                yield world._replace(pressure=True, at="lease_take_back: load limit, taken", then="serve")
        case "late":
            yield world._replace(pressure=True, at="serve", then="rest")
        case "lease_take_back: load limit, taken":
            headroom = max(0, world.limit - world.taken)
            if not headroom:
                yield world._replace(at=world.then, then="rest")
            else:
                world = world._replace(before=world.bound, lowered=world.bound - headroom)
                yield world._replace(at="lease_take_back: store limit")
        case "lease_take_back: store limit":
            blind = world.broken == "taken back without a look"
            world = world._replace(limit=world.lowered, at="lease_take_back: load taken")
            if blind:
                world = world._replace(at="lease_take_back: store bound")
            yield world
        case "lease_take_back: load taken":
            lowered = min(max(world.taken, world.lowered), world.before)
            yield world._replace(lowered=lowered, at="lease_take_back: store limit again")
        case "lease_take_back: store limit again":
            yield world._replace(limit=world.lowered, at="lease_take_back: store bound")
        case "lease_take_back: store bound":
            leased = world.leased - (world.before - world.lowered)
            yield world._replace(bound=world.lowered, leased=leased, at=world.then, then="rest")
        case "serve":
            yield _serve(world)
        case "Lease.grant: granted +=":
            index, size = world.queue[0]
            world = world._replace(leased=world.leased + size, granted=world.granted + size)
            yield world._replace(at="Lease.grant: lease_extend")
        case "Lease.grant: lease_extend":
            # Alone, it gets all there is.
            idle = free(world) if len(world.queue) == 1 and not world.asks else 0
            world = world._replace(leased=world.leased + idle, bound=world.bound + idle)
            if world.broken == "limit before bound":
                world = world._replace(limit=world.bound, bound=world.bound - idle, lowered=world.bound)
            yield world._replace(at="lease_extend: store limit")
        case "lease_extend: store limit":
            if world.broken == "limit before bound":
                yield world._replace(bound=world.lowered, at="Broker._granted: send")
            else:
                yield world._replace(limit=world.bound, at="Broker._granted: send")
        case "Broker._granted: send":
            (index, size), *rest = world.queue
            heard = (*world.heard, (index, size)) if world.connected and world.threads[index].asked else world.heard
            if world.broken == "sent first":
                world = world._replace(queue=tuple(rest), heard=heard, at="answered: granted +=", before=size)
            else:
                world = world._replace(queue=tuple(rest), heard=heard, at="serve", then="rest")
            yield world
        case "answered: granted +=":
            size = world.before
            yield world._replace(leased=world.leased + size, granted=world.granted + size, at="serve", then="rest")
        case "Lease.charge: measured +=":
            world = world._replace(measured=world.measured + 1, leased=world.leased + 1)
            yield world._replace(at="lease_take_back: load limit, taken", then="serve")
        case "Lease.discharge: measured -=":
            yield world._replace(measured=world.measured - 1, leased=world.leased - 1, at="serve", then="rest")
        case "lease_take_peak: load peak":
            yield world._replace(read=world.peak, at="lease_take_peak: store look" if unseen(world) else "looked")
        case "lease_take_peak: store look":
            number = world.read[1] if world.broken != "seen unread" else world.peak[1]
            yield world._replace(look=number, shown=max(world.shown, world.read[0]), at="looked")
        case "looked":
            yield _looked(world)
        case "lease_settle: limit = 0":
            closed = world._replace(limit=-world.capacity) if world.broken != "settled in one step" else world
            yield closed._replace(at="lease_settle: load taken")
        case "lease_settle: load taken":
            lowered = min(world.taken, world.bound) if world.broken != "settled at what is taken" else world.taken
            yield world._replace(lowered=lowered, at="lease_settle: store limit")
        case "lease_settle: store limit":
            yield world._replace(limit=world.lowered, at="lease_settle: store bound")
        case "lease_settle: store bound":
            yield world._replace(bound=world.lowered, at="Lease.taken_over")
        case "Lease.taken_over" if not world.lives:
            yield world._replace(pressure=False, at="rest")  # there is no page to be found
        case "Lease.taken_over":
            leased = world.bound + world.granted + world.measured
            if world.broken == "what was granted is forgotten":
                leased = world.bound + world.accepted + world.measured
            unheard = world.granted - world.accepted if world.broken == "sent at take-over" else 0
            yield world._replace(leased=leased, unheard=unheard, pressure=False, at="serve", then="rest")


def _hears(world: World) -> Iterator[World]:
    if not world.lives and world.leased:  # its pidfd says so, and the card shows it no more: Roster.close
        mine = tuple(call for call in world.queue if call[0] < 0)
        yield world._replace(leased=0, unheard=0, queue=mine, at="serve", then="rest")
        return
    if world.said:
        then = "Broker.need" if world.said[0][0] >= 0 else "serve"
        collects = world.pressure and not (then == "Broker.need" and world.broken == "asked without a look")
        at = "lease_take_back: load limit, taken" if collects else then if then != "serve" else "rest"  # Broker.collect
        yield world._replace(call=world.said[0], said=world.said[1:], at=at, then=then if collects else "")
    if world.asks and (-1, world.asks) not in world.queue:
        yield world._replace(queue=(*world.queue, (-1, world.asks)), at="serve", then="Broker._press")
    if world.watched and world.looks:
        yield world._replace(looks=world.looks - 1, at="lease_take_peak: load peak")
    # Measure: the card shows more, or less again. (More than there is room for is foreign memory's business.)
    if not world.lives:
        return
    if world.more > world.measured and (free(world) or world.limit > world.taken):
        yield world._replace(at="Lease.charge: measured +=")
    if world.more < world.measured:
        yield world._replace(at="Lease.discharge: measured -=")


def unseen(world: World) -> bool:
    return world.peak[1] != world.look


def _looked(world: World) -> World:
    """What is used now is seen as well. Where nobody is in the middle of a free, what was held before is history."""
    used = world.taken + world.granted
    world = world._replace(at="rest", read=(0, 0), shown=max(world.shown, used))
    if unseen(world) or any(each.at not in (RUNS, WAITS) for each in world.threads):
        return world
    return world._replace(shown=0, most_held=held(world), most_used=used)


def _serve(world: World) -> World:
    """The arbiter: the first in the queue that fits; whoever does not fit waits under pressure."""
    fits = next((call for call in world.queue if call[1] <= free(world)), None)
    if fits is None:
        then = world.then if world.queue else "rest"
        return world._replace(pressure=world.pressure and bool(world.queue), at=then or "rest", then="")
    rest = tuple(call for call in world.queue if call != fits)
    if fits[0] < 0:
        return world._replace(neighbour=world.neighbour + fits[1], asks=0, queue=rest)
    if not world.connected or not world.threads[fits[0]].asked:
        return world._replace(queue=rest)  # whoever asked is not there any more
    send_first = world.broken == "sent first"
    at = "Broker._granted: send" if send_first else "Lease.grant: granted +="
    return world._replace(queue=(fits, *rest), at=at)


# ---- what comes from outside ----------------------------------------------------------------------------------------


def outside(world: World) -> Iterator[World]:
    if world.kills:
        # Its memory is gone, and what it had not read; what it has sent is still there to be read.
        dead = world._replace(
            kills=world.kills - 1,
            connected=False,
            said=(),
            queue=(),
            leased=0,
            unheard=0,
            call=(-1, 0),
            before=0,
            lowered=0,
        )
        yield dead._replace(at="lease_settle: limit = 0", then="")
    if world.frees:
        if not world.asks:
            yield world._replace(frees=world.frees - 1, asks=2)
        if world.neighbour and world.at == "rest":
            yield world._replace(frees=world.frees - 1, neighbour=0, at="serve", then="rest")
    if world.deaths:
        gone = tuple(Thread(calls=0) for _ in world.threads)
        yield world._replace(deaths=0, lives=False, threads=gone, connected=False, heard=(), said=(), more=0)
    if world.mores and world.lives and not world.more and held(world) + world.neighbour < world.capacity:
        yield world._replace(mores=world.mores - 1, more=1)
    if world.more:
        yield world._replace(more=0)


def steps(world: World) -> Iterator[World]:
    """Every world that may come next."""
    for after in _steps(world):
        yield _remember(after) if world.watched else after


def _remember(world: World) -> World:
    most_used = max(world.most_used, world.taken + world.granted)
    return world._replace(most_held=max(world.most_held, held(world)), most_used=most_used)


def _steps(world: World) -> Iterator[World]:
    for index in range(len(world.threads)):
        yield from thread(world, index)
    yield from reader(world)
    yield from scheduler(world)
    yield from outside(world)

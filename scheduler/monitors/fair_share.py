"""Fair share between the core and the records: the core gets what is due to whom, with what was had before and
what other hosts have counted; what it counts is written each minute and at the end."""

import asyncio
import logging

from django.db import DatabaseError

from scheduler.core.events import Forgiven, LedgerRestored, PeopleChanged, UsageElsewhere
from scheduler.core.people.ledger import Account, accounts, decayed
from scheduler.core.people.standing import standings
from scheduler.core.people.tree import Tree
from scheduler.parts import is_set_within
from scheduler.sessions.broker import Broker
from scheduler.store import Store
from scheduler.store.usage import Given
from web.people.shares import Current

log = logging.getLogger(__name__)

MINUTE = 60.0  # seconds from one look at what is due to the next
LEAST = float(2**30)  # byte·seconds; less is not worth a row yet
NOTHING = Account()


class FairShare:
    def __init__(self, broker: Broker, store: Store) -> None:
        self._broker, self._store, self._usage = broker, store, store.usage
        self._woken = asyncio.Event()
        self._tree = Tree()
        self._forgiven: dict[str, int] = {}  # person → how often, as the core knows it
        self._elsewhere = False  # whether the core was given any
        self._written: dict[tuple[str, str], tuple[Account, float]] = {}  # GPU, person → account, core's time
        self._hour, self._hours = 0, dict[tuple[str, str], Account]()

    def wake(self) -> None:
        """Shares, or who is in which group, may have changed."""
        self._woken.set()

    async def start(self) -> None:
        """Before anything is decided. Raises DatabaseError."""
        before, now = await self._usage.before(), self._broker.now()
        self._hour, self._hours = self._usage.hour, dict(before.hours)
        self._forgiven = dict(before.forgiven)
        self._broker.tell(LedgerRestored(now, before.accounts))
        for gpu, its in before.accounts.items():
            self._written |= {(gpu, person): (account, now) for person, account in its.items()}
        await self._hear()

    async def run(self) -> None:
        while True:
            await is_set_within(self._woken, MINUTE)
            self._woken.clear()
            await self._hear()

    async def _hear(self) -> None:
        try:
            given = await self._usage.given()
        except DatabaseError:
            return  # the store says so; what was heard last stays
        self._divide(given.due)
        for person, times in given.due.forgiven.items():
            if self._forgiven.get(person, 0) != times:
                self._forgive(person, times)
        self._tell_of_others(given)

    def _divide(self, due: Current) -> None:
        tree = Tree(groups=due.group_of, shares=due.groups, own=due.people)
        if tree != self._tree:
            self._tree = tree
            if refused := self._broker.ask(PeopleChanged(self._broker.now(), tree)):
                log.error("the shares in the database make no sense, and those before stay: %s", refused.explanation)

    def _forgive(self, person: str, times: int) -> None:
        self._forgiven[person] = times
        self._broker.tell(Forgiven(self._broker.now(), person))
        for gpu, whose in list(self._written):
            if whose == person:
                self._note(gpu, person, NOTHING)

    def _tell_of_others(self, given: Given) -> None:
        if given.elsewhere or given.capacity or self._elsewhere:
            self._elsewhere = bool(given.elsewhere or given.capacity)
            self._broker.tell(UsageElsewhere(self._broker.now(), given.elsewhere, given.capacity))

    def write(self) -> None:
        """What the core has counted, as it is now. Waits for no database: what it does not answer is kept here."""
        self._begin_hour()
        state, now = self._broker.state, self._broker.now()
        for gpu, its in accounts(state.people, now).items():
            for person, account in its.items():
                self._count(gpu, person, account, now)
        found, people = standings(state, now), state.people
        for gpu, person in self._written:
            one = found.people.get(person)
            counts = one or found.groups.get(people.tree.parent(person))  # of whom nothing is left: as any newcomer
            share = round(one.share[gpu]) if one and gpu in one.share and people.meters[gpu].calls else None
            self._usage.standing(gpu, person, ratio=round(counts.ratio, 2) if counts else 1.0, share=share)

    def _begin_hour(self) -> None:
        if (hour := self._usage.hour) != self._hour:
            for gpu, person in self._hours:
                self._usage.over(self._hour, gpu, person)
            self._hour, self._hours = hour, {}

    def _count(self, gpu: str, person: str, account: Account, now: float) -> None:
        last, at = self._written.get((gpu, person), (NOTHING, now))
        left = decayed(last, now - at)
        more = Account(max(0.0, account.had - left.had), max(0.0, account.due - left.due))
        if max(more) < LEAST:
            return
        self._note(gpu, person, account)
        so_far = self._hours[gpu, person] = self._hours.get((gpu, person), NOTHING).plus(more)
        self._usage.counted_in(self._hour, gpu, person, so_far)

    def _note(self, gpu: str, person: str, account: Account) -> None:
        self._written[gpu, person] = account, self._broker.now()
        self._usage.counted(gpu, person, account, self._forgiven.get(person, 0))

    async def close(self) -> None:
        self.write()

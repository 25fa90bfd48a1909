"""How cards are divided among people, and what each person has used."""

from dataclasses import replace

from scheduler.core.effects import Reason
from scheduler.core.events import Forgiven, LedgerRestored, PeopleChanged, UsageElsewhere
from scheduler.core.people import ledger, tree
from scheduler.core.people.ledger import Account, Elsewhere
from scheduler.core.step import Handlers, Step


def _people_changed(step: Step, event: PeopleChanged) -> None:
    if wrong := tree.mistake(event.tree):
        step.refuse(Reason.INVALID, wrong)
        return
    step.state = replace(step.state, people=ledger.divided_by(step.state.people, event.tree, step.state.now))
    step.touched.update(step.state.gpus)


def _ledger_restored(step: Step, event: LedgerRestored) -> None:
    for gpu, accounts in event.accounts.items():
        if gpu in step.state.gpus:
            now = {name: ledger.decayed(each, event.age) for name, each in accounts.items()}
            step.state = replace(step.state, people=ledger.with_accounts(step.state.people, gpu, now, step.state.now))


def _usage_elsewhere(step: Step, event: UsageElsewhere) -> None:
    sound = {name: Account(*each) for name, each in event.accounts.items() if ledger.is_sound(each)}
    elsewhere = Elsewhere(step.state.now, sound, max(0, event.capacity))
    step.state = replace(step.state, people=step.state.people._replace(elsewhere=elsewhere))


def _forgiven(step: Step, event: Forgiven) -> None:
    people = ledger.without_accounts(step.state.people, event.person, step.state.now)
    step.state = replace(step.state, people=people)


HANDLERS: Handlers = {
    PeopleChanged: _people_changed,
    LedgerRestored: _ledger_restored,
    UsageElsewhere: _usage_elsewhere,
    Forgiven: _forgiven,
}

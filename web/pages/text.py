"""What the scripts say, for translation; everything else that a person reads stands in templates/."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from web.models import AllocationEvent, State

STATES: dict[str, str | Promise] = {
    State.CREATED: _("Starting"),
    State.RUNNING: _("Running"),
    State.SUSPENDED: _("Suspended"),
    State.PAUSED: _("Paused"),
    State.EXITED: _("Exited"),
    State.FAILED: _("Failed"),
    State.KILLED: _("Killed"),
}

POLICIES: dict[str, str | Promise] = {
    "fair": _("Nobody waits beyond a bound; meanwhile those who fit go first. The default."),
    "fifo": _("First come, first served."),
    "best-fit": _("The largest request that fits goes first."),
    "recent-use": _("Who was served last goes first."),
    "random": _("By lot."),
}

_KIND = AllocationEvent.Kind
EVENTS: dict[str, str | Promise] = {
    _KIND.ACCEPTED: _("accepted"),
    _KIND.SUSPENDED: _("suspended"),
    _KIND.RESUMED: _("resumed"),
    _KIND.REJECTED: _("rejected"),
    _KIND.FREED: _("freed"),
    _KIND.STARTED: _("started"),
    _KIND.ENDED: _("ended"),
    _KIND.PAUSED: _("paused"),
    _KIND.UNPAUSED: _("unpaused"),
    _KIND.KILLED: _("killed"),
    _KIND.QUOTA: _("quota changed"),
    _KIND.WARNED: _("time nearly over"),
    _KIND.IDLE: _("idle"),
    _KIND.BYPASS: _("past the shim"),
    _KIND.CARD_FULL: _("card full"),
}

_CATALOGUE: dict[str, str | Promise] = {
    "live": _("Live"),
    "lost": _("Connection lost"),
    "connecting": _("Connecting"),
    "connection_lost": _("Connection lost. What you see is {age} old; trying again."),
    "scheduler_silent": _("The scheduler does not answer. What you see is its last word; running programs go on."),
    "engine_away": _("The container engine is away: {error}"),
    "close": _("Close"),
    "not_sent": _("Nothing was done: the server could not be reached. Try again once the connection is back."),
    "kill_title": _("Kill {name}?"),
    "kill_text": _("Its processes end at once and what they have not saved is lost. This cannot be undone."),
    "kill_yes": _("Kill"),
    "kill_many_title": _("Kill {count} containers?"),
    "kill_many_text": _("Their processes end at once and what they have not saved is lost. This cannot be undone."),
    "kill_many_yes": _("Kill {count}"),
    "remove_title": _("Remove {name}?"),
    "remove_text": _("The engine forgets it and its logs. Its history stays in the reports."),
    "remove_yes": _("Remove"),
    "selected": _("{count} selected"),
    "simulated": _("simulated"),
    "utilisation": _("{value} % busy"),
    "of_total": _("held of {total}; {free} free"),
    "bar_used": _("{name} uses {size}"),
    "bar_idle": _("{name} has {size} in hand, unused"),
    "bar_unexplained": _("{size} unexplained"),
    "bar_foreign": _("{size} foreign"),
    "bar_free": _("all free"),
    "waiting": _("number {place} in the queue for {time}: {reason}"),
    "ended_at": _("· ended {time}{code}"),
    "exit_code": _(", exit code {code}"),
    "no_output": _("No output."),
    "held": _("VRAM held"),
    "busy": _("GPU busy"),
    "last_hour": _("The last hour: VRAM held, and how busy the GPU was"),
    "preview_fits": _("fits: {free} free"),
    "preview_waits": _("would wait: {free} free"),
    "preview_behind": _("would wait behind {count}; {free} free"),
    "preview_never": _("never: it can give {most} at the most"),
    "take_suggestion": _("Take {size}"),
    "copied": _("Copied"),
    "move_up": _("Move up"),
    "move_down": _("Move down"),
    "passes": _("{name}: from {from} to {to}, tried before {others}"),
    "and_more": _("and {count} more"),
    "idle": _("idle headroom"),
    "unexplained": _("unexplained"),
    "foreign": _("foreign"),
    "free": _("free"),
}


def catalogue() -> dict[str, str]:
    """For {{ text|json_script }}, in the reader's language."""
    states = {f"state_{state}": str(label) for state, label in STATES.items()}
    return {key: str(text) for key, text in _CATALOGUE.items()} | states

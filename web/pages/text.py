"""What the scripts say; everything else that a person reads stands in templates/."""

from __future__ import annotations

from web.models import AllocationEvent, State

STATES: dict[str, str] = {
    State.CREATED: "Starting",
    State.RUNNING: "Running",
    State.SUSPENDED: "Suspended",
    State.PAUSED: "Paused",
    State.SWAPPED: "Swapped out",
    State.EXITED: "Exited",
    State.FAILED: "Failed",
    State.KILLED: "Killed",
}

EventKind = AllocationEvent.Kind
EVENTS: dict[str, str] = {
    EventKind.ACCEPTED: "accepted",
    EventKind.SUSPENDED: "suspended",
    EventKind.RESUMED: "resumed",
    EventKind.REJECTED: "rejected",
    EventKind.FREED: "freed",
    EventKind.STARTED: "started",
    EventKind.ENDED: "ended",
    EventKind.PAUSED: "paused",
    EventKind.UNPAUSED: "unpaused",
    EventKind.SWAPPED_OUT: "swapped out",
    EventKind.SWAPPED_IN: "swapped in",
    EventKind.NOT_MOVED: "did not give way",
    EventKind.KILLED: "killed",
    EventKind.QUOTA: "quota changed",
    EventKind.WARNED: "time nearly over",
    EventKind.IDLE: "idle",
    EventKind.BYPASS: "bypassed the shim",
    EventKind.CARD_FULL: "card full",
}

_CATALOGUE: dict[str, str] = {
    "live": "Live",
    "lost": "Connection lost",
    "connecting": "Connecting",
    "connection_lost": "Connection lost. What you see is {age} old; trying again.",
    "scheduler_silent": "The scheduler does not answer. What you see is its last word; running programs go on.",
    "engine_away": "The container engine is away: {error}",
    "close": "Close",
    "not_sent": "Nothing was done: the server could not be reached. Try again once the connection is back.",
    "kill_title": "Kill {name}?",
    "kill_text": "Its processes end at once and what they have not saved is lost. This cannot be undone.",
    "kill_yes": "Kill",
    "kill_many_title": "Kill {count} containers?",
    "kill_many_text": "Their processes end at once and what they have not saved is lost. This cannot be undone.",
    "kill_many_yes": "Kill {count}",
    "remove_title": "Remove {name}?",
    "remove_text": "The engine deletes it and its output. Its history stays in the reports.",
    "remove_yes": "Remove",
    "free_title": "Pause {name} and free its memory?",
    "free_text": "{size} of GPU memory go to host memory in about {out}, and are free for others. Its programs stand "
    "still; continuing takes about {back} once there is room, and they go on where they were.",
    "free_yes": "Pause and free",
    "selected": "{count} selected",
    "simulated": "simulated",
    "utilisation": "{value} % busy",
    "of_total": "held of {total}; {free} free",
    "bar_used": "{name} uses {size}",
    "bar_idle": "{name} has {size} of idle headroom",
    "bar_unexplained": "{size} unexplained",
    "bar_foreign": "{size} foreign",
    "bar_reserved": "{size} reserved for guaranteed containers",
    "bar_free": "all free",
    "swapped": "{size} in host memory",
    "waiting": "number {place} in the queue for {time}: {reason}",
    "ended_at": "· ended {time}{code}",
    "exit_code": ", exit code {code}",
    "no_output": "No output.",
    "held": "VRAM held",
    "busy": "GPU busy",
    "last_hour": "The last hour: VRAM held, and how busy the GPU was",
    "preview_free": "{free} free",
    "preview_idle": "{free} free, {idle} idle headroom",
    "preview_fits": "fits: {free}",
    "preview_waits": "would wait: {free}",
    "preview_behind": "would wait behind {count}; {free}",
    "preview_never": "never: it can give {most} at the most",
    "take_suggestion": "Take {size}",
    "copied": "Copied",
    "move_up": "Move up",
    "move_down": "Move down",
    "passes": "{name}: from {from} to {to}, tried before {others}",
    "and_more": "and {count} more",
    "idle": "idle headroom",
    "reserved": "reserved",
    "unexplained": "unexplained",
    "foreign": "foreign",
    "free": "free",
}


def catalogue() -> dict[str, str]:
    """For {{ text|json_script }}: what format.js fills in and shows."""
    return _CATALOGUE | {f"state_{state}": label for state, label in STATES.items()}

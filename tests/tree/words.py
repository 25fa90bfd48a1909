"""Names and phrases that this project has given up, each with the one that is used now.

They are looked for in the code, the pages and the documents, in whatever way a text is broken into lines. Logs of
measurements (`results/`) keep the words of their day.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

READ = ("*.py", "*.c", "*.h", "*.html", "*.js", "*.md", "*.toml")
HERE = ("tests/tree/words.py", "tests/tree/test_tree.py")
PAST = "CHANGELOG.md"  # it says what was in the words of its day

# in a name, a word or a sentence, in whatever case → how it is said now
STEMS = {"told": "reported, shown, recorded, sent (a fact); notified, warned, asked (somebody)"}

# name → what it is called now
NAMES = {
    "Tenant": "LiveContainer",
    "Rota": "FairQueue",
    "Outfit": "RuntimeEnvironment",
    "Sighting": "Status",
    "Ender": "Terminator",
    "GiveWay": "Preempt",
    "WantedBack": "SwapInRequested",
    "Stirred": "ActivityDetected",
    "foresight": "forecasts",
    "strangers.py": "foreign_processes.py",
}

# phrase → how it is said now
PHRASES = {
    "its last word": "The data below is old.",
    "outside us": "used by other programs",
    "idle headroom of": "reserved, not yet used",
    "Take no part in the turns": "Do not share compute time",
    "takes no part in the turns of computing": "does not share compute time",
    "takes the keyboard out": "leaves the terminal",
    "That is not here": "Page not found",
    "The server failed at this": "Server error",
    "Not by this name": "This host name is not allowed",
    "computes nothing and holds": "is idle and holds",
    "waiting for each other for ever": "could deadlock",
    "It starts once its whole quota": "Starts when … is free",
    "Nobody here has failed": "Waiting programs have not failed.",
    "together worth most": "Balances request size, waiting time, priority and each owner's use.",
    "is served, by lot": "A random choice among the requests that fit.",
    "Where it would stand now": "Where it would run",
    "when it will fit cannot be known": "no estimate",
    "Begin it again": "Restart policy",
    "Tell me when it": "Notify me when",
    "Empty: one is made up": "Leave empty for a random name",
    "Most of a GPU's time": "GPU time limit (%)",
    "Switch the account off": "Disable the account",
    "Take it away": "Remove the allowance",
    "Nothing chosen: all of them": "None ticked: all GPUs, new ones included",
    "What people did, and tried to do": "Activity",
    "Name of what it was done to": "Target",
    "VRAM that others wait for": "Memory that one person holds is not free for others.",
    "do not fit together": "Wrong name or password.",
    "what comes in here is none": "Input is not a terminal.",
    "where several compute": "under contention",
    "who computes nothing is passed over": "idle containers are skipped",
    "wait for ever, or crash": "deadlock or crash",
    "taken in whatever case": "unique regardless of case",
    "a right to keep well": "Guard this token carefully",
    "is nobody's business": "say what is ignored, and why",
    "neither here nor there": "say both places",
    "Is it whole?": "Integrity",
    "This needs cookies": "Cookies are needed",
    "This was not accepted": "Request refused",
    "Nothing needs anybody": "Nothing needs attention.",
    "goes on without a word": "Shorter waits send no notification.",
    "not good any more": "no longer valid",
    "The scheduler went away": "The connection to the scheduler was lost.",
    "as the driver pleases": "as the driver schedules them",
    "whose it is here": "its owner here",
    "came to no end": "did not finish",
    "Nobody says where": "The address of … is not known.",
    "log tells more": "log has details",
    "Its time was over": "Its time limit was reached.",
    "depending on who counted": "Sizes are in KiB, MiB, GiB and TiB (powers of 1024), as in Docker.",
}


def given_up(root: Path) -> Iterator[str]:
    """A line for each name or phrase that is still there: file, what, and what it is now."""
    named = re.compile("|".join(rf"\b{re.escape(each)}\b" for each in NAMES))
    phrased, stemmed = (re.compile("|".join(map(re.escape, each))) for each in (PHRASES, STEMS))
    listed = subprocess.run(["git", "ls-files", "--", *READ], cwd=root, check=False, stdout=subprocess.PIPE, text=True)
    for name in listed.stdout.splitlines():
        path = root / name
        if name in HERE or "/results/" in name or not path.is_file():
            continue
        # Comment signs, quotation marks of strings in parts, and line ends are no part of a sentence.
        text = re.sub(r'["\s]*\n[\s#*/"]*', " ", path.read_text(errors="replace"))
        for found in dict.fromkeys(named.findall(text)):
            yield f"{name}: {found} is {NAMES[found]} now"
        for found in dict.fromkeys(phrased.findall(text)):
            yield f'{name}: "{found}" is said so now: {PHRASES[found]}'
        for found in dict.fromkeys(stemmed.findall(text.lower()) if name != PAST else ()):
            yield f'{name}: "{found}" is said so now: {STEMS[found]}'

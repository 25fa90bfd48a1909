"""Is anything lost, whatever is killed? See docs/reliability.md; `make faults` runs all of it.

    python -m tests.faults lines    the scheduler (or a keeper) dies before each line of the modules that act
    python -m tests.faults storm    ten users, and whatever can die dies at random

Each round ends with the same questions (questions.py). The exit code is 0 only if every answer was right.
"""

"""Is anything lost, whatever is killed? See docs/reliability.md; `make faults` runs all of it.

    python -m tests.faults lines    the scheduler (or a keeper) dies before each line of the modules that act
    python -m tests.faults storm    ten users, and whatever can die or go wrong does so at random
    python -m tests.faults soak     a day in an hour; nothing may grow

Each round ends with the same questions (questions.py). The exit code is 0 only if every answer was right.
"""

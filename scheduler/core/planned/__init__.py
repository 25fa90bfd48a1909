"""Planned launches, without a container until they may start: what starts next, and what follows from an end.

- `progress.py`: the runs of one planned launch: which is next, which are under way, what an end leads to.
- `conditions.py`: what a planned launch waits for beside memory, and what can never come.
- `order.py`: of those whose conditions hold, which may start now, and on which cards.

A planned launch is a launch or a *sweep* of up to thousands of *runs*; each *attempt* of a run is a container of its
own. The order among people is the memory queue's (`scheduler/core/people`); what is new is that a whole quota counts
from the start, so that nobody who was started waits for memory because of another planned launch.
"""

"""What needs somebody, and what happened to somebody's container, is sent to those who want to hear it.

One process looks each few seconds (`watching.py`): what attention tells becomes *episodes* (`episodes.py`), what the
audit tells of containers becomes *notices* (`happenings.py`), and rules make of both *deliveries* (`outbox.py`), all
of it rows. Whoever claims a delivery sends it (`sending.py`, in the words of `words.py`) and closes it by a
conditional update. So a process that is killed at any moment loses nothing, and what it may have sent is sent again
under the same id. It runs in the web side's processes, in threads of its own (`loop.py`): the scheduler has no part in
it, and that it is away is sent as well.
"""

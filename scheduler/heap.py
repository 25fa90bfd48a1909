"""What the C library lends in large blocks has pages of its own, which go back to the kernel with it.

By itself glibc puts such blocks on the heap once one has been freed. A dictionary of some MiB that is made anew now and
then, as Python's of the names of processes is, then leaves a hole each time that is never whole again: a scheduler grew
by 3.75 MiB every few minutes of a day of tests/faults/soak.py, with no object more.
"""

import ctypes

LARGE = 256 << 10  # bytes
M_MMAP_THRESHOLD = -3  # of mallopt(3)


def give_large_blocks_back() -> None:
    """From now on. Does nothing with a C library that cannot."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, LARGE)

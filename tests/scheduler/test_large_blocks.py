"""What the scheduler frees in large blocks goes back to the kernel, whatever it has freed before."""

import subprocess
import sys

import pytest

LENT_ANEW = """
import ctypes, sys

from scheduler.heap import give_large_blocks_back

libc = ctypes.CDLL(None)


class Mallinfo2(ctypes.Structure):  # of mallinfo(3)
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


libc.mallinfo2.restype = Mallinfo2
if sys.argv[1] == "mended":
    give_large_blocks_back()
for _ in range(2):
    before = libc.mallinfo2().hblkhd
    block = bytearray(4 << 20)
    lent = libc.mallinfo2().hblkhd - before
    del block
print(lent >> 20)
"""


@pytest.mark.parametrize(("how", "mebibytes"), [("mended", "4"), ("as it was", "0")])
def test_a_large_block_has_pages_of_its_own_also_after_one_was_freed(how: str, mebibytes: str) -> None:
    done = subprocess.run([sys.executable, "-c", LENT_ANEW, how], capture_output=True, text=True, check=False)
    if "mallinfo2" in done.stderr:
        pytest.skip("this C library does not tell what it has lent (glibc 2.33)")
    assert done.stdout.strip() == mebibytes, done.stderr

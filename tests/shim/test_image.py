"""What the driver moves off the cards lies in huge pages: the shim advises them. All else is mapped as it asks."""

import mmap
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.card import MIB, Card
from tests.support.grants import Grants
from tests.support.program import Program

LARGE = 64 * MIB
POPULATED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages to advise"
)


@pytest.fixture
def maps(card: Card, grants: Grants) -> Callable[..., dict[str, str]]:
    """Maps so much in a program under the shim, as the driver would; what the kernel says of it."""
    program = Program(card, grants.env())
    program.use()
    (peer,) = grants.peers

    def mapped(size: int, flags: int, moving: bool, name: str = "mmap") -> dict[str, str]:
        peer.page.hold(moving)
        try:
            at = program.run(f"""
libc = ctypes.CDLL(None, use_errno=True)
libc.{name}.restype = ctypes.c_void_p
ctypes.set_errno(77)
answer = libc.{name}(None, ctypes.c_size_t({size}), 3, {flags}, -1, ctypes.c_long(0))
assert ctypes.get_errno() == 77
""")
        finally:
            peer.page.hold(False)
        parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{program.pid}/smaps").read_text(), flags=re.M)
        its = next(part for part in parts if part and _holds(part, at))
        return dict(re.findall(r"^(\w+): +(.+?) *$", its, re.M))

    return mapped


def _holds(part: str, address: int) -> bool:
    begin, end = (int(word, 16) for word in part.split(" ", 1)[0].split("-"))
    return begin <= address < end


def test_what_is_mapped_for_a_move_is_advised_and_there(maps: Callable[..., dict[str, str]]) -> None:
    for name in ("mmap", "mmap64"):
        its = maps(LARGE, POPULATED, moving=True, name=name)
        assert "hg" in its["VmFlags"].split()
        assert int(its["Rss"].split()[0]) * 1024 >= LARGE


@pytest.mark.parametrize(
    ("size", "flags", "moving"),
    [
        pytest.param(LARGE, POPULATED, False, id="not moved"),
        pytest.param(LARGE // 2, POPULATED, True, id="small"),
        pytest.param(LARGE, POPULATED & ~mmap.MAP_POPULATE, True, id="without its pages"),
        pytest.param(LARGE, POPULATED & ~mmap.MAP_PRIVATE | mmap.MAP_SHARED, True, id="shared"),
    ],
)
def test_a_programs_own_memory_is_as_it_asks(
    maps: Callable[..., dict[str, str]], size: int, flags: int, moving: bool
) -> None:
    assert "hg" not in maps(size, flags, moving)["VmFlags"].split()


def test_what_fails_fails_as_without_the_shim(card: Card, grants: Grants) -> None:
    program = Program(card, grants.env())
    program.use()
    (peer,) = grants.peers
    peer.page.hold(True)
    code = f"""
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
answer = libc.mmap(None, ctypes.c_size_t(1 << 62), 3, {POPULATED}, -1, ctypes.c_long(0)), ctypes.get_errno()
"""
    assert program.run(code) == [2**64 - 1, 12]
    peer.page.hold(False)

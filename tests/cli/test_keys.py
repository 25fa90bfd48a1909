"""Ctrl-P Ctrl-Q leave a container's terminal; every other key is the container's."""

import pytest

from appliance.cli.console import Keys


@pytest.mark.parametrize(
    ("typed", "passed_on", "left"),
    [
        ([b"ab"], [b"ab"], False),
        ([b"a\x10", b"b"], [b"a", b"\x10b"], False),
        ([b"\x10", b"\x10", b"\x10\x11x"], [b"", b"\x10", b"\x10"], True),
        ([b"a\x10\x11b"], [b"a"], True),
        ([b"\x11\x10", b"\x11"], [b"\x11", b""], True),
    ],
)
def test_the_keys_that_leave_are_seen_wherever_they_are_cut(
    typed: list[bytes], passed_on: list[bytes], left: bool
) -> None:
    keys = Keys()
    assert ([keys.typed(data) for data in typed], keys.left) == (passed_on, left)

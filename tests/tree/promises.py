"""When a test runs: by its marks, read from its source, and by the lists of tests/support/tiers.py."""

import ast
from pathlib import Path

from tests.support import tiers

ROOT = Path(__file__).parents[2]


def tier(node: str) -> str:
    """`make test`, `make test-all` or `make deb-test`, of a file or of `file::test`. Raises LookupError.

    Where only some cases of a test wait, it runs with `make test`; so does a file of which only some tests wait.
    """
    name, _, test = node.partition("::")
    file = ROOT / name
    if not file.is_file():
        raise LookupError(f"no file {name}")
    tree = ast.parse(file.read_text())
    marks = " ".join(ast.unparse(each) for each in tree.body if "pytestmark" in ast.unparse(each)[:12])
    if test:
        found = [each for each in tree.body if getattr(each, "name", "") == test]
        if not found:
            raise LookupError(f"no test {test} in {name}")
        marks += " ".join(
            ast.unparse(mark) for mark in found[0].decorator_list if "parametrize" not in ast.unparse(mark)
        )
    if "mark.debian" in marks:
        return "make deb-test"
    return "make test-all" if "mark.long" in marks or tiers.waits(node) else "make test"

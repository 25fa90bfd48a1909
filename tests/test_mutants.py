"""The lines that `python -m tests.mutants` breaks are there, and the tests that are to notice run with `make test`."""

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant
from tests.tree.promises import tier


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.file)
def test_a_line_that_is_to_be_broken_stands_there_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.line) == 1
    assert {tier(each) for each in mutant.tests.split()} == {"make test"}

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sizes import CASES
from web.sizes import exact_size, format_size, parse_size, percents


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096), ("4096", 4096), ("2GiB", 2**31), ("512m", 2**29), ("1.5g", 3 * 2**29), ("1 KiB", 1024),
        ("10B", 10), ("3kb", 3072), ("1T", 2**40), (" 7 MB ", 7 * 2**20), (0, 0), ("0.5k", 512),
    ],
)  # fmt: skip
def test_a_size_is_read_as_docker_reads_it(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "much", "-1", -1, "1.1", "1,5g", "0x10", "1e9", "2 Gi B", "5iB", "NaN", "inf", "1PiB", True, 1.5, None, [], {},
     2**63, "9" * 20 + "t", "٣"],
)  # fmt: skip
def test_what_is_not_a_size_is_refused_with_a_sentence(text):
    with pytest.raises(ValueError, match=r"\.$"):
        parse_size(text)


@given(st.integers(0, 2**63 - 1))
def test_bytes_are_read_back_exactly(size):
    assert parse_size(str(size)) == parse_size(size) == size


@given(st.integers(0, 2**63 - 1))
def test_what_a_field_is_filled_with_is_read_back_exactly(size):
    assert parse_size(exact_size(size)) == size


@pytest.mark.parametrize(("size", "text"), [(3 * 2**29, "1.5GiB"), (512, "512"), (751619277, "751619277")])
def test_a_field_is_filled_as_people_write_it_if_that_is_exact(size, text):
    assert exact_size(size) == text


@pytest.mark.parametrize(
    ("text", "nearest"), [("5.1GiB", "5222MiB"), ("0.7g", "717MiB"), ("0.3k", "307"), ("1.1", "1")]
)
def test_a_part_of_a_byte_is_refused_with_the_nearest_that_is_whole(text, nearest):
    with pytest.raises(ValueError, match=f'^"{text}" is not a whole number of bytes: "{nearest}" is\\.$'):
        parse_size(text)
    assert parse_size(nearest) > 0


@pytest.mark.parametrize(("size", "text"), CASES)
def test_a_size_is_written_for_people(size, text):
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "meant"), [("4", '"4GiB"'), (4, '"4GiB"'), (" 80 ", '"80GiB"'), ("512", '"512MiB"'), (40960, '"40960MiB"')]
)
def test_a_number_that_was_meant_in_another_unit_is_asked_about(text, meant):
    with pytest.raises(ValueError, match=rf"at least 1 MiB\. .* bytes: did you mean {meant}\?$"):
        parse_size(text, 2**20)


@pytest.mark.parametrize("text", ["0", 0, "4k", "0.5m", "1023KiB"])
def test_too_little_with_a_unit_is_only_refused(text):
    with pytest.raises(ValueError, match=r"at least 1 MiB\.$"):
        parse_size(text, 2**20)


def test_the_least_itself_is_enough():
    assert parse_size("1m", 2**20) == 2**20


@given(st.lists(st.integers(0, 10**12), max_size=40))
def test_percents_of_a_whole_are_100_together_and_each_less_than_one_off(parts):
    found, total = percents(parts), sum(parts)
    assert sum(found) == (100 if total else 0)
    assert all(abs(each - 100 * part / total) < 1 for each, part in zip(found, parts, strict=True) if total)

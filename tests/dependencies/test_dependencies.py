"""`make audit` finds a pinned package that an advisory names, and says when its data is of no use."""

import json
from datetime import UTC, datetime

import pytest

from tests.dependencies import __main__ as audit

ADVISORIES = {
    "Some.Package": [
        {"id": "GHSA-0", "cve": "CVE-2026-0", "v": ">=2.0,<2.4.1", "fixed_in": "2.4.1"},
        {"id": "GHSA-1", "cve": "CVE-2026-1", "v": "<1.0", "fixed_in": "1.0"},
    ],
    "django": [{"id": "GHSA-2", "cve": "CVE-2020-2", "v": "<2.2.13", "fixed_in": "2.2.13"}],
}


@pytest.mark.parametrize(
    ("pin", "named"),
    [("some-package==2.4.0", ["GHSA-0"]), ("some-package==2.4.1", []), ("some-package==2.0rc1", []),
     ("some-package==0.9", ["GHSA-1"]), ("other==2.4.0", [])],
)  # fmt: skip
def test_a_pin_is_named_by_the_advisories_for_its_version(pin, named):
    assert [found.split()[1] for found in audit.findings([pin], ADVISORIES)] == named


def test_pins_are_read_as_pip_reads_them():
    text = "# said\nSome_Package==2.4.0 ; sys_platform == 'linux' \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"
    assert list(audit.pins(text)) == ["some-package==2.4.0"]


def run(tmp_path, monkeypatch, capsys, data, requirements):
    pins = tmp_path / "requirements"
    pins.mkdir()
    (pins / "audit.txt").write_text("# data: 2026-07-07\ncarrier==1 --hash=sha256:00\n")
    (pins / "run.txt").write_text(requirements)
    monkeypatch.setattr(audit, "PINS", pins)
    (tmp_path / "data.json").write_text(json.dumps(data))
    return audit.main(tmp_path / "data.json"), capsys.readouterr().out


def test_it_fails_if_a_pin_is_named_and_says_how_old_its_data_is(tmp_path, monkeypatch, capsys):
    begun = datetime.now(UTC).date()
    code, said = run(tmp_path, monkeypatch, capsys, ADVISORIES, "some-package==2.4.0 --hash=sha256:00\nother==1\n")
    assert code == 1
    assert "some-package==2.4.0: GHSA-0 (CVE-2026-0), mended in 2.4.1" in said
    ages = {(day - audit.date_of_data()).days for day in (begun, datetime.now(UTC).date())}  # two around midnight
    assert any(f"Advisories as of 2026-07-07, {age} days ago" in said for age in ages)


def test_it_passes_if_none_is_named(tmp_path, monkeypatch, capsys):
    assert run(tmp_path, monkeypatch, capsys, ADVISORIES, "some-package==2.4.1\n")[0] == 0


def test_data_that_does_not_know_what_is_known_to_be_bad_is_of_no_use(tmp_path, monkeypatch, capsys):
    assert run(tmp_path, monkeypatch, capsys, {}, "some-package==2.4.0\n")[0] == 2


def test_every_pin_of_ours_can_be_read():
    for path in audit.PINS.glob("*.txt"):
        assert list(audit.pins(path.read_text()))

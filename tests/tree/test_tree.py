"""The check of the tree's form finds what is planted, and finds nothing in this tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scheduler.plugins import PLUGINS
from tests.tree import c, clocks, python, words
from tests.tree.__main__ import MOST, faults
from tests.tree.circles import circles

ROOT = Path(__file__).parent.parent.parent


def plant(root: Path, **sources: str) -> None:
    """Writes files; `__` in a name stands for a slash, the last `_` for the dot: `a__b_py` is a/b.py."""
    for name, text in sources.items():
        stem, _, ending = name.replace("__", "/").rpartition("_")
        path = root / f"{stem}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_this_tree_has_no_circle_and_no_crowded_folder():
    assert [*faults(ROOT), *clocks.faults(ROOT)] == []


def test_nothing_imports_a_plug_in():
    """Its folder can be deleted: it is found by name alone."""
    for folder in (path.rpartition(".")[0].rpartition(".")[0].replace(".", "/") for path in PLUGINS.values()):
        own = (f"{folder}/", f"tests/{folder.rpartition('/')[2]}/")
        modules = python.graph(ROOT).items()
        assert any(name.startswith(folder) for name, _ in modules)
        assert not {
            name for name, asked in modules if not name.startswith(own) and any(each.startswith(own) for each in asked)
        }


def test_a_circle_of_python_imports_is_found_wherever_the_statements_stand(tmp_path):
    plant(
        tmp_path,
        web__one_py="from web.two import f",
        web__two_py="def f():\n    import web.three",
        web__three_py="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import one",
        web__apart_py="from web import one, two, three\nimport os",
    )
    assert circles(python.graph(tmp_path)) == [["web/one", "web/two", "web/three", "web/one"]]


@pytest.mark.parametrize("line", ["import a.b.c", "from a.b import c", "from a.b.c import d", "from .b import c"])
def test_every_form_of_an_import_leads_to_the_module(tmp_path, line):
    plant(tmp_path, a__user_py=line, a__b__c_py="d = 1")
    assert python.graph(tmp_path)["a/user"] == {"a/b/c"}


def test_an_import_of_a_name_from_a_package_leads_to_the_package(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text("from a.part import name\n")
    plant(tmp_path, a__part_py="import a\nname = 1")
    assert circles(python.graph(tmp_path)) == [["a/__init__", "a/part", "a/__init__"]]


def test_a_circle_of_c_headers_is_found(tmp_path):
    plant(
        tmp_path,
        a_h='#ifndef A\n#define A\n#include "b.h"\n#endif',
        b_c='#include "a.h"\nint b;',
        b_h="int declared(void);",
    )
    assert circles(c.graph(tmp_path)) == [["a", "b", "a"]]


def test_a_circle_through_symbols_is_found_behind_a_header_that_only_declares(tmp_path):
    plant(
        tmp_path,
        all_h="int one(void);\nint two(void);\nint three(void);",
        parts__one_c='#include "all.h"\nint one(void) { return two(); }',
        parts__two_c='#include "all.h"\nint two(void) { return three(); }',
        parts__three_c='#include "all.h"\n#define CALL(name) name()\nint three(void) { return CALL(one); }',
    )
    assert circles(c.graph(tmp_path)) == [["parts/one", "parts/two", "parts/three", "parts/one"]]


def test_a_file_and_its_header_are_one_module_and_no_circle(tmp_path):
    plant(tmp_path, a_h="int a(void);", a_c='#include "a.h"\nint a(void) { return 1; }', b_c='#include "a.h"\nint b;')
    assert c.graph(tmp_path) == {"a": set(), "b": {"a"}}


def test_of_two_definitions_of_a_name_the_nearest_is_meant(tmp_path):
    plant(
        tmp_path,
        real__call_c="int call(void) { return 1; }",
        sim__call_c="int call(void) { return 2; }",
        sim__user_c="int call(void);\nint user(void) { return call(); }",
    )
    assert c.graph(tmp_path)["sim/user"] == {"sim/call"}


def test_c_that_does_not_compile_is_reported_and_not_passed_over(tmp_path):
    plant(tmp_path, bad_c="int bad(")
    with pytest.raises(SystemExit, match=r"bad\.c does not compile"):
        c.graph(tmp_path)


def test_a_folder_with_too_many_modules_is_found_and_tests_are_not_counted(tmp_path):
    for index in range(MOST + 1):
        plant(tmp_path, **{f"crowd__m{index}_py": "", f"tests__t{index}_py": ""})
    for index in range(MOST):
        plant(tmp_path, **{f"full__m{index}_c": f"int m{index};", f"full__m{index}_h": ""})
    (tmp_path / "full" / "__init__.py").touch()
    assert faults(tmp_path) == [f"crowd has {MOST + 1} modules, more than {MOST}"]


def test_a_name_and_a_phrase_that_were_given_up_are_found_wherever_a_line_breaks(tmp_path):
    past = {"CHANGELOG_md": "Owners are told.", "c_js": "const isUntold = 1;"}
    plant(
        tmp_path, web__one_py="class Tenant:\n    pass", templates__a_html="<p>Begin\n    it again</p>", b_md="Tenants",
        **past,
    )  # fmt: skip
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert list(words.given_up(tmp_path)) == [
        f'c.js: "told" is said so now: {words.STEMS["told"]}',
        'templates/a.html: "Begin it again" is said so now: Restart policy',
        "web/one.py: Tenant is LiveContainer now",
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("time.sleep(1)", "sleeps"),
        ("from time import sleep as nap; nap(1)", "sleeps"),
        ("await asyncio.sleep(0.1)", "sleeps"),
        ("await asyncio.sleep(0)", ""),
        ("assert time.monotonic() - begun < 2", "compares with a clock"),
        ("assert 1 < time.monotonic() - begun < 2", "compares with a clock"),
        ("while loop.time() < end: pass", "compares with a clock"),
        ("from time import monotonic; assert monotonic() < end", "compares with a clock"),
        ("assert asyncio.get_running_loop().time() < end", "compares with a clock"),
        ("took = time.perf_counter() - begun; assert took < 2", "compares with a clock"),
        ("assert time.monotonic() - begun > 2", ""),
        ("assert 2 <= time.monotonic() - begun", ""),
        ("program = 'time.sleep(1)'", ""),
        ("httpx.get(url)", "waits five seconds for an answer, as httpx does by itself"),
        ("httpx.get(url, timeout=PATIENCE)", ""),
    ],
)
def test_a_test_that_sleeps_or_compares_with_a_clock_is_found(tmp_path, line, what):
    plant(tmp_path, tests__web__test_a_py=f"async def test_it():\n    {line}", tests__support__a_py="time.sleep(1)")
    assert [found[2] for found in clocks.places(tmp_path)] == ([what] if what else [])


def test_virtual_time_makes_asyncios_sleep_short_and_no_other(tmp_path):
    lines = "from tests.support.inprocess.host import InProcess\nasync def test_it():\n    "
    plant(tmp_path, tests__scheduler__test_a_py=f"{lines}await asyncio.sleep(9); time.sleep(1)")
    assert [found[1:] for found in clocks.places(tmp_path)] == [(3, "sleeps")]

"""The tables of docs/training_cache.md and docs/recordings.md, and the tests that they name, are held together."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "training_cache.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows(heading: str, page: Path = PAGE) -> list[str]:
    """The rows of the table below a heading, without its first two."""
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def functions_in(path: str) -> list[str]:
    nodes = ast.parse((ROOT / path).read_text()).body
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@pytest.mark.slow
@pytest.mark.parametrize("page,least", [("training_cache.md", 40), ("recordings.md", 30)])
def test_each_test_that_is_named_is_there(page: str, least: int) -> None:
    named = TEST.findall((PAGE.parent / page).read_text())
    assert [f"{path}::{name}" for path, name in named if name not in functions_in(path)] == []
    assert len(named) >= least


@pytest.mark.parametrize("page", ["training_cache.md", "recordings.md"])
def test_each_wrong_thing_has_a_test(page: str) -> None:
    table = rows("When something is wrong", PAGE.parent / page)
    assert len(table) >= 9
    assert [row for row in table if not TEST.search(row)] == []


def test_each_case_of_the_reference_has_its_test_and_each_such_test_its_case() -> None:
    cases = [TEST.findall(row) for row in rows("The cases of the reference")]
    assert [len(tests) for tests in cases] == [1] * 15
    source = (ROOT / "tests/cache/test_training.py").read_text()
    before, after = source.index("the cases of the reference\n\n"), source.index("- settings\n")
    there = re.findall(r"^def (test_\w+)", source[before:after], re.MULTILINE)
    assert [tests[0][1] for tests in cases] == there


def test_each_weak_point_has_tests_and_each_such_test_its_row() -> None:
    table = {int(row.split("|")[1]): {name for _, name in TEST.findall(row)} for row in rows("Its weak points")}
    assert list(table) == list(range(1, 14))
    assert all(table.values())
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "cache").glob("test_*.py"))
    numbered = [(name, re.match(r"test_(\d+)_", name)) for path in files for name in functions_in(path)]
    assert [name for name, number in numbered if number and name not in table[int(number[1])]] == []
    assert sum(number is not None for _, number in numbered) >= 18


def test_the_variables_are_the_ones_that_are_read() -> None:
    named = set(re.findall(r"`(DSNB_\w+)`", "".join(rows("Settings"))))
    read = set(re.findall(r'"(DSNB_\w+)"', (ROOT / "dsnb/cache/results/training.py").read_text()))
    assert named == read

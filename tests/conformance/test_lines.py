"""Each line of the sections that are built is tested, or is listed with a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.conformance.lines import DIFFERS, NOT_HERE, SECTIONS

NAME = re.compile(r"test_line_(\d{3})_\w+")


def lines_tested(section: str) -> dict[int, set[str]]:
    """The lines that a section's modules name in their tests, and those tests."""
    found: dict[int, set[str]] = {}
    for path in Path(__file__).parent.glob(f"test_{section}_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (name := NAME.fullmatch(node.name)):
                found.setdefault(int(name[1]), set()).add(node.name)
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_each_line_is_tested_or_listed(section: str) -> None:
    lines = set(SECTIONS[section])

    assert set(lines_tested(section)) | (set(NOT_HERE) & lines) == lines


@pytest.mark.parametrize("section", SECTIONS)
def test_no_line_is_tested_and_listed_as_missing(section: str) -> None:
    assert set(lines_tested(section)) & set(NOT_HERE) == set()


def test_what_differs_is_tested() -> None:
    assert set(DIFFERS) <= {line for section in SECTIONS for line in lines_tested(section)}


def test_the_lists_are_in_order() -> None:
    for table in (NOT_HERE, DIFFERS):
        assert list(table) == sorted(table)


def test_each_reason_is_a_sentence_of_its_own() -> None:
    for reason in (*NOT_HERE.values(), *DIFFERS.values()):
        assert len(reason.split()) > 5

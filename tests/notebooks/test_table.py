"""The situations in docs/notebooks.md and the tests that drive kernels through them are the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "notebooks.md"


def rows() -> list[list[str]]:
    """The cells of each situation's row."""
    situations = TABLE.read_text().partition("\n## Notebook applications\n")[0]
    lines = [line for line in situations.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "situation"]


def named_in(row: list[str]) -> list[str]:
    return re.findall(r"`(test_\w+)`", row[-1])


def functions_of_the_tests() -> list[str]:
    found = [ast.parse(path.read_text()) for path in sorted(HERE.glob("test_situations_*.py"))]
    functions = [node for module in found for node in module.body if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if function.name.startswith("test_")]


def test_each_row_says_what_happens_what_to_do_and_names_a_test() -> None:
    assert len(rows()) > 20
    assert [row for row in rows() if len(row) != 4 or not all(row) or not named_in(row)] == []


def test_each_situation_has_its_test_and_each_test_its_row() -> None:
    named = [name for row in rows() for name in named_in(row)]
    assert sorted(named) == sorted(functions_of_the_tests())

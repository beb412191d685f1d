"""Rules that no linter checks: the length of functions, suppressions with a code, and no TODO without an issue."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_FUNCTION = 60


def sources(*folders: str) -> list[Path]:
    """The Python files that people write."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if not path.stem.endswith("_pb2"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function, its docstring left out: documentation has no limit."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_function_is_over_60_lines() -> None:
    long = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path in sources("dsnb", "tools", "dashboard")
        for node in functions(path)
        if code_lines(node) > LONGEST_FUNCTION
    ]
    assert long == []


def test_nothing_is_promised_without_an_issue() -> None:
    promise = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
    promises = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in sources("dsnb", "tests", "tools", "dashboard", "benchmarks")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if promise.search(line)
    ]
    assert promises == []


def test_each_suppression_has_a_code() -> None:
    bare = re.compile(r"#\s*(type: ignore(?!\[)|noqa(?!: ?[A-Z]))")
    found = [
        f"{name(path)}:{number}"
        for path in sources("dsnb", "tests", "tools", "dashboard", "benchmarks")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if bare.search(line)
    ]
    assert found == []


def test_each_module_that_calls_itself_pure_is_under_the_contract() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [c for c in configuration["tool"]["importlinter"]["contracts"] if c["id"] == "pure"]
    named = {module.replace(".", "/") for module in contract["source_modules"]}
    claims = re.compile(r"\bPure\b|\b[Aa] pure core\b")
    unchecked = [
        name(path)
        for path in sources("dsnb")
        if claims.search(ast.get_docstring(tree(path)) or "")
        and not any(name(path).removesuffix(".py") == one or name(path).startswith(f"{one}/") for one in named)
    ]
    assert unchecked == []

"""What `dsnb.cache` offers."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dsnb

SOURCE = Path(inspect.getfile(dsnb.cache))


def imports_for_type_checkers() -> dict[str, str]:
    """Each name imported under `if TYPE_CHECKING`, with the module it comes from."""
    (guard,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    return {alias.asname: node.module for node in guard.body for alias in node.names}


def test_type_checkers_see_the_same_names_as_python() -> None:
    assert set(dsnb.cache.__all__) == set(imports_for_type_checkers()) <= set(dir(dsnb.cache))


@pytest.mark.parametrize("name", sorted(dsnb.cache.__all__))
def test_each_name_is_there_and_documented(name: str) -> None:
    value = getattr(dsnb.cache, name)
    assert value is getattr(import_module(imports_for_type_checkers()[name]), name)
    assert value.__doc__
    members = [member for key, member in vars(value).items() if not key.startswith("_") and inspect.isroutine(member)]
    assert [member for member in members if not inspect.getdoc(member)] == []


@pytest.mark.parametrize("name", ["fingerprint", "remembered"])
def test_each_function_tells_its_arguments_result_and_errors_with_an_example(name: str) -> None:
    function = getattr(dsnb.cache, name)
    text = inspect.getdoc(function) or ""
    parts = [part for part in ("Args:", "Returns:", "Raises:", "Example:") if part in text]
    assert parts == ["Args:", "Returns:", "Raises:", "Example:"]
    for parameter in inspect.signature(function).parameters:
        assert f"\n    {parameter}: " in text
    examples = [test for test in doctest.DocTestFinder().find(function, name) if test.examples]
    assert examples


def test_the_example_of_fingerprint_is_true() -> None:
    (example,) = doctest.DocTestFinder().find(dsnb.cache.fingerprint, "fingerprint")
    assert doctest.DocTestRunner().run(example).failed == 0


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"module 'dsnb\.cache' has no attribute 'Cachable'"):
        dsnb.cache.Cachable  # noqa: B018


def test_importing_the_room_opens_no_database() -> None:
    code = "import sys, dsnb; dsnb.cache; print('sqlite3' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False False\n", "")

"""What `dsnb.launchers` offers."""

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

SOURCE = Path(inspect.getfile(dsnb.launchers))


def imports_for_type_checkers() -> dict[str, str]:
    """Each name imported under `if TYPE_CHECKING`, with the module it comes from."""
    (guard,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    return {alias.asname: node.module for node in guard.body for alias in node.names}


def test_type_checkers_see_the_same_names_as_python() -> None:
    assert set(dsnb.launchers.__all__) == set(imports_for_type_checkers()) == set(dir(dsnb.launchers))


@pytest.mark.parametrize("name", sorted(dsnb.launchers.__all__))
def test_each_name_is_there_and_its_example_runs(name: str) -> None:
    module = import_module(imports_for_type_checkers()[name])
    value = getattr(dsnb.launchers, name)
    assert value is getattr(module, name)
    members = [member for key, member in vars(value).items() if not key.startswith("_") and inspect.isroutine(member)]
    assert [member for member in members if not inspect.getdoc(member)] == []
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(value, name, module=module, globs=vars(module).copy())
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_an_unknown_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match=r"module 'dsnb\.launchers' has no attribute 'Rya'"):
        dsnb.launchers.Rya  # noqa: B018


def test_no_engine_is_imported_before_it_is_used() -> None:
    code = "import dsnb, sys; dsnb.launchers.__all__; [getattr(dsnb.launchers, n) for n in dsnb.launchers.__all__]; "
    code += "print(sorted({'ray', 'dask', 'distributed'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"

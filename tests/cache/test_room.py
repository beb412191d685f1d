"""What `dsnb.cache` offers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dsnb

SOURCE = Path(inspect.getfile(dsnb.cache))


def test_type_checkers_see_the_same_names_as_python() -> None:
    (guard,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    found = {alias.asname: node.module for node in guard.body for alias in node.names}
    assert found == dsnb.cache._HOMES
    assert set(dsnb.cache.__all__) == set(found) <= set(dir(dsnb.cache))


@pytest.mark.parametrize("name", sorted(dsnb.cache._HOMES))
def test_each_name_is_there_and_documented(name: str) -> None:
    value = getattr(dsnb.cache, name)
    assert value is getattr(import_module(dsnb.cache._HOMES[name]), name)
    assert value.__doc__
    members = [member for key, member in vars(value).items() if not key.startswith("_") and inspect.isroutine(member)]
    assert [member for member in members if not inspect.getdoc(member)] == []


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"module 'dsnb\.cache' has no attribute 'Cachable'"):
        dsnb.cache.Cachable  # noqa: B018


def test_importing_the_room_opens_no_database() -> None:
    code = "import sys, dsnb; dsnb.cache; print('sqlite3' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False False\n", "")

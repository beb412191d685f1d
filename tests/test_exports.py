"""What `import dsnb` offers is what it says it offers, documented, and costs nothing until it is used."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import dsnb

SOURCE = Path(inspect.getfile(dsnb))
NAMES = sorted({*dsnb.__all__} - {"__version__"})
CLASSES = [name for name in NAMES if name[0].isupper() and not name.isupper()]


def imports_for_type_checkers() -> dict[str, str]:
    """Each name imported under `if TYPE_CHECKING`, with the module it comes from."""
    (guard,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    found = {}
    for node in guard.body:
        assert isinstance(node, ast.ImportFrom)
        (alias,) = node.names
        assert alias.asname == alias.name, "`import X as X` is what type checkers take for an export"
        found[alias.name] = f"dsnb.{alias.name}" if node.module == "dsnb" else str(node.module)
    return found


def test_type_checkers_see_the_same_names_as_python() -> None:
    assert sorted(imports_for_type_checkers()) == NAMES


def test_all_is_what_dir_shows() -> None:
    assert set(dsnb.__all__) == set(dir(dsnb))


@pytest.mark.parametrize(
    "module", [dsnb, dsnb.cache, dsnb.errors, dsnb.launchers, dsnb.testing], ids=lambda module: module.__name__
)
def test_dir_shows_the_public_names_alone(module: ModuleType) -> None:
    assert set(dir(module)) == set(module.__all__)
    assert [name for name in dir(module) if name.startswith("_") and name != "__version__"] == []
    assert not {"Any", "import_module", "gc_paused", "annotations", "TYPE_CHECKING"} & set(dir(module))


def test_the_version_is_the_package_s() -> None:
    project = (SOURCE.parents[1] / "pyproject.toml").read_text()
    assert f'\nversion = "{dsnb.__version__}"\n' in project


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_can_be_imported_from_its_home(name: str) -> None:
    value = getattr(dsnb, name)
    home = importlib.import_module(imports_for_type_checkers()[name])
    assert value is home or value is getattr(home, name)


def test_an_unknown_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'dsnb' has no attribute 'Datset'"):
        dsnb.Datset  # noqa: B018


# ---------------------------------------------------------------------------------------------------- documentation


def documented_constants(module: str) -> set[str]:
    """The names in a module whose assignment is followed by a string, as editors and Sphinx read it."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    found = set()
    for node, after in pairwise(body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if is_text and isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def public_members(cls: type) -> Iterator[tuple[str, object]]:
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        ours = any(name in vars(base) and base.__module__.startswith("dsnb") for base in cls.__mro__)
        if (
            not name.startswith("_")
            and ours
            and isinstance(member, property | staticmethod | classmethod | FunctionType)
        ):
            yield name, member


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name: str) -> None:
    if name.isupper():
        assert name in documented_constants(imports_for_type_checkers()[name])
    else:
        assert len((getattr(dsnb, name).__doc__ or "").split()) >= 3


@pytest.mark.parametrize("name", CLASSES)
def test_each_method_of_a_public_class_is_documented(name: str) -> None:
    cls = getattr(dsnb, name)
    undocumented = [name for name, member in public_members(cls) if not inspect.getdoc(member)]
    assert undocumented == []


def test_each_error_is_documented_and_shown_in_the_tree() -> None:
    errors = [
        value
        for value in vars(dsnb.errors).values()
        if isinstance(value, type) and issubclass(value, Exception | Warning)
    ]
    assert [error for error in errors if not error.__doc__] == []
    assert [error for error in errors if error.__name__ not in (dsnb.errors.__doc__ or "")] == []


# ------------------------------------------------------------------------------------------------------------- cost


def after(code: str) -> set[str]:
    """Run code in a fresh interpreter and return the top-level modules that it loaded, and the count of threads."""
    tell = "print(*{name.partition('.')[0] for name in sys.modules}, f'threads={threading.active_count()}')"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, threading\n{code}\n{tell}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=SOURCE.parents[1],
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return set(done.stdout.split())


def test_start_itself_loads_no_library_so_that_worker_processes_can_import_theirs_meanwhile() -> None:
    found = after("import dsnb; dsnb.start")
    assert not found & {"numpy", "grpc", "google", "cloudpickle", "sqlite3"}


def test_import_dsnb_loads_no_library_and_starts_no_thread() -> None:
    found = after("import dsnb")
    assert "threads=1" in found
    assert not found & {"panel", "bokeh", "numpy", "grpc", "google", "cloudpickle", "IPython", "ipywidgets"}


@pytest.mark.slow
def test_importing_every_name_starts_no_thread_and_loads_neither_panel_nor_bokeh() -> None:
    found = after("from dsnb import *")
    assert "threads=1" in found
    assert not found & {"panel", "bokeh", "ipywidgets"}

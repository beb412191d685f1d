"""One rule says what is the user's: cells, scripts and local modules; not the library's, not dsnb."""

from __future__ import annotations

import json.decoder
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dsnb.errors
from dsnb.code.usercode import is_user_class, is_user_module, is_user_namespace, user_modules


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A package `usercode_local` with a module `inner`, in a folder on the path."""
    package = tmp_path / "usercode_local"
    package.mkdir()
    (package / "__init__.py").write_text("from usercode_local import inner\n")
    (package / "inner.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import usercode_local  # type: ignore[import-not-found]

    yield usercode_local
    for name in [name for name in sys.modules if name.startswith("usercode_local")]:
        del sys.modules[name]


def test_local_modules_are_the_users(local: types.ModuleType) -> None:
    names = {module.__name__ for module in user_modules()}
    assert {"usercode_local", "usercode_local.inner", __name__} <= names


def test_a_module_that_is_imported_later_is_found_though_the_answers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {module.__name__ for module in user_modules()}
    (tmp_path / "usercode_later.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "usercode_later", raising=False)
    __import__("usercode_later")
    assert {module.__name__ for module in user_modules()} - before == {"usercode_later"}


@pytest.mark.parametrize("module", [np, json.decoder, sys, pytest, types], ids=lambda module: module.__name__)
def test_the_standard_library_and_site_packages_are_not_the_users(module: types.ModuleType) -> None:
    assert not is_user_module(module)
    assert module not in user_modules()


def test_dsnb_is_not_the_users_though_it_runs_from_a_checkout() -> None:
    assert not is_user_module(dsnb.errors)
    assert not is_user_class(dsnb.errors.DsnbError)
    assert not [module for module in user_modules() if module.__name__.partition(".")[0] == "dsnb"]


def test_main_is_the_users_where_it_has_no_file_as_in_a_kernel() -> None:
    assert is_user_namespace({"__name__": "__main__"})


def test_globals_without_a_name_are_the_users_as_exec_leaves_them() -> None:
    assert is_user_namespace({})


def test_a_module_made_in_a_cell_is_the_users_and_one_that_cython_keeps_is_not() -> None:
    assert is_user_module(types.ModuleType("usercode_made"))
    assert not is_user_module(types.ModuleType("_cython_3_0_11"))


def test_a_module_of_a_library_that_names_no_real_file_is_the_librarys() -> None:
    assert not is_user_namespace({"__name__": "numpy.made_up", "__file__": "_ops.py"})
    assert not is_user_namespace({"__name__": "numpy.made_up"})


def test_a_folder_that_is_only_called_like_the_library_is_the_users(tmp_path: Path) -> None:
    stdlib = Path(json.__file__).parent.parent
    beside = f"{stdlib}-of-mine/tool.py"
    assert is_user_namespace({"__name__": "tool", "__file__": beside})
    assert not is_user_namespace({"__name__": "tool", "__file__": f"{stdlib}/tool.py"})
    assert not is_user_namespace({"__name__": "tool", "__file__": "/opt/env/lib/site-packages/tool.py"})


def test_classes_belong_to_their_module(local: types.ModuleType) -> None:
    assert is_user_class(local.inner.Thing)
    assert not is_user_class(np.ndarray)
    assert not is_user_class(dict)


def test_a_script_is_the_users_in_its_own_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from dsnb.code.usercode import user_modules\nprint([module.__name__ for module in user_modules()])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60,
        env={"PYTHONPATH": str(Path(dsnb.errors.__file__).parent.parent)},
    )  # fmt: skip
    assert done.stdout.strip() == "['__main__']"

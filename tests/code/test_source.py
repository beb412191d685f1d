from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.code.source import source_of, user_code_by_path
from tests.support.fingerprints import local_modules


def outer(x: int) -> Callable[[], int]:
    def inner() -> int:
        return x + 1

    return inner


def test_the_source_of_a_function_and_of_one_inside_another() -> None:
    assert (source_of(outer.__code__) or "").startswith("def outer(x: int)")
    inner: Any = outer(1)
    assert source_of(inner.__code__) == "    def inner() -> int:\n        return x + 1\n"


def test_a_file_that_was_edited_after_it_was_imported_is_not_the_source(tmp_path: Path) -> None:
    with local_modules(tmp_path) as write:
        module = write("fingerprint_edited", "def f(x):\n    return x + 1\n")
        assert source_of(module.f.__code__) == "def f(x):\n    return x + 1\n"
        write("fingerprint_edited", "def f(x):\n    return x + 2\n", imported=False)
        linecache.checkcache()
        assert source_of(module.f.__code__) is None


def test_what_has_no_source_has_none() -> None:
    names: dict[str, Any] = {}
    exec("def f(): pass", names)
    assert source_of(names["f"].__code__) is None


def test_code_is_found_by_the_paths_of_the_fingerprint() -> None:
    codes = user_code_by_path(outer, root="it")
    paths = {part.path for part in fingerprint(outer, root="it").components if part.kind == "code"}
    assert set(codes) == {"it > code"} <= paths
    assert codes["it > code"] is outer.__code__
    assert user_code_by_path(np.sin) == {}

"""What cannot be pickled is named: the operation, the variable, the way to it, and what to do."""

from __future__ import annotations

import functools
import socket
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.graph import serialise
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.operations.map import Map
from tests.support.graphs import local_package, pipeline_with, registration_error


@pytest.fixture
def helpers(tmp_path: Path) -> Iterator[types.ModuleType]:
    with local_package(tmp_path) as package:
        yield package


def test_a_lock_is_named_with_the_operation_and_the_way_to_it() -> None:
    lock = threading.Lock()

    def decode(x: int) -> int:
        with lock:
            return x

    assert registration_error(decode) == (
        "map(decode) cannot be sent to the workers: its variable 'lock' (_thread.lock) cannot be pickled"
    )


def test_a_helper_of_a_helper_is_searched_even_where_they_call_each_other() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "guard": threading.Lock()}
    exec("def a(x): return b(x)\ndef b(x): return (a, c)\ndef c(x): return guard", namespace)
    assert "its variable 'guard' (_thread.lock), reached by way of 'b' and 'c', cannot" in registration_error(
        namespace["a"]
    )


def test_defaults_attributes_and_containers_are_searched() -> None:
    class Augment:
        def __init__(self) -> None:
            self.parts = {"log": [threading.Lock()]}

    augment = Augment()
    lock = threading.Lock()

    def with_default(x: int, guard: Any = lock) -> int:
        return x

    assert "its variable 'guard' (_thread.lock) cannot" in registration_error(with_default)
    assert "its variable \"augment.parts['log'][0]\" (_thread.lock) cannot" in registration_error(lambda x: augment)
    assert "its variable 'self.parts" in registration_error(types.MethodType(lambda self, x: x, augment)).replace(
        '"', "'"
    )
    assert "its variable 'guard' (_thread.lock)" in registration_error(functools.partial(with_default, guard=lock))


@pytest.mark.parametrize("mode", ["r", "rb", "w"])
def test_an_open_file_is_refused_and_not_read_in_its_place(tmp_path: Path, mode: str) -> None:
    (tmp_path / "list.txt").write_text("a\n")
    refused = pytest.raises(InvalidArgumentError, match="its variable 'names'")
    with (tmp_path / "list.txt").open(mode) as names, refused as found:
        serialise(pipeline_with(lambda x: names))
    assert found.value.hint == "pass the file's path, and open the file inside the function"


def test_the_hint_fits_what_was_found() -> None:
    hints = {}
    with socket.socket() as sock:
        for found in (sock, (x for x in "ab"), threading.Lock()):
            with pytest.raises(InvalidArgumentError) as refused:
                serialise(pipeline_with(lambda x, found=found: x))
            hints[type(found).__name__] = refused.value.hint.partition(",")[0]
    assert hints == {
        "socket": "pass the address",
        "generator": "pass a function that makes the generator",
        "lock": "make it inside the function",
    }


def test_an_object_whose_reduction_raises_anything_is_named() -> None:
    class Model:
        def __reduce__(self) -> str:
            raise LookupError("weights are gone")

    model = Model()
    with pytest.raises(InvalidArgumentError, match=r"its variable 'model' \(.*Model\) cannot be pickled") as refused:
        serialise(pipeline_with(lambda x: model))
    assert isinstance(refused.value.__cause__, LookupError)


@pytest.mark.slow
def test_data_that_is_nested_too_deeply_is_named_by_its_variable() -> None:
    tree: list[Any] = []
    for _ in range(100_000):
        tree = [tree]
    try:
        assert "its variable 'tree' (list) is nested too deeply to be pickled" in registration_error(lambda x: tree)
    finally:
        while tree:  # freed level by level: the interpreter's own way is recursive
            tree = tree[0]


def test_the_error_of_a_source_names_the_source() -> None:
    class Source(Operation, frozen=True, kw_only=True):
        files: Any

    with pytest.raises(InvalidArgumentError, match=r"source cannot be sent to the workers: its variable 'files\[1\]'"):
        serialise(Map(function=len, inputs=(Source(files=["a", threading.Lock()]),)))


def test_what_a_modules_function_needs_and_cannot_be_pickled_is_named(helpers: types.ModuleType) -> None:
    namespace = {"__name__": "__main__", "graph_local": helpers}
    exec("def guard(x): return graph_local.inner.locked(x)", namespace)
    assert registration_error(namespace["guard"]) == (
        "map(guard) cannot be sent to the workers: its variable 'lock' (_thread.lock), reached by way of "
        "'graph_local.inner.locked', cannot be pickled"
    )

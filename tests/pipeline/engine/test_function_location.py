"""Reports and errors say what a user's function is called and where it was written."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from dsnb.pipeline.engine.function_location import add_location_note, function_name, location_of


def decode(x: Any) -> Any:
    raise RuntimeError(x)


class Decoder:
    def __call__(self, x: Any) -> Any:
        return x

    def method(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    "function, name",
    [
        (decode, "decode"),
        (lambda x: x, "<lambda>"),
        (functools.partial(functools.partial(decode, 1), 2), "decode"),
        (Decoder(), "Decoder"),
        (Decoder().method, "method"),
        (len, "len"),
    ],
    ids=["function", "lambda", "partial", "object", "method", "builtin"],
)
def test_a_function_goes_by_the_name_that_the_user_gave_it(function: Any, name: str) -> None:
    assert function_name(function) == name


def cell(source: str, filename: str, name: str = "f") -> Any:
    """A function as a cell would define it."""
    namespace: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


def failure_of(function: Any) -> BaseException:
    try:
        function(1)
    except Exception as error:  # noqa: BLE001 - any error will do
        return error
    raise AssertionError("it was to fail")


def test_the_place_is_the_file_and_the_line_that_failed() -> None:
    line = decode.__code__.co_firstlineno + 1
    assert location_of(decode, failure_of(decode)) == f"{__file__}:{line}"
    assert location_of(decode) == f"{__file__}:{line - 1}"


def test_a_cell_is_named_by_its_number() -> None:
    f = cell("x = 1\ndef f(x):\n    y = 1\n    return x / 0\n", "<ipython-input-3-abcdef>")
    assert location_of(f, failure_of(f)) == "cell 3 line 4"


def test_a_function_written_in_c_has_no_place() -> None:
    assert location_of(len) == ""


@pytest.mark.parametrize(
    "function", [Decoder(), Decoder().method, functools.partial(decode, 1)], ids=["object", "method", "partial"]
)
def test_objects_methods_and_partials_have_the_place_of_their_code(function: Any) -> None:
    assert location_of(function).startswith(f"{__file__}:")


def test_the_note_names_operation_and_place_once() -> None:
    failure = failure_of(decode)
    add_location_note(failure, "map(decode)", decode)
    add_location_note(failure, "map(decode)", decode)
    assert failure.__notes__ == [f"in map(decode), {location_of(decode, failure)}"]

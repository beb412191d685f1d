"""Arguments are checked at the call, by their names; the error ends at the caller's line."""

from __future__ import annotations

import ast
import doctest
import inspect
import math
import traceback
from collections.abc import Callable
from fractions import Fraction
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
import dsnb.arguments
from dsnb.arguments import (
    boolean,
    buffer,
    checked,
    each,
    function,
    function_of,
    integer,
    milliseconds,
    number,
    one_of,
    optional,
    path,
    port,
    seconds,
    short_repr,
    text,
)
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from tests.support.public_api import public_callables, rules_of

BIG = 10**400


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def refused(call: Callable[[], Any]) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    return caught.value


# ---- rules


RIGHT: list[tuple[Any, Any, Any]] = [
    (integer(1), np.int32(3), 3),
    (integer(1), np.array(3), 3),
    (integer(), -(2**63), -(2**63)),
    (port, np.uint16(5050), 5050),
    (seconds, np.float32(0.5), 0.5),
    (seconds, Fraction(1, 2), 0.5),
    (seconds, 3, 3.0),
    (boolean, np.True_, True),
    (text, np.str_("übung"), "übung"),
    (text, "訓練", "訓練"),
    (path, Path("a/b"), "a/b"),
    (path, "~/x", str(Path.home() / "x")),
    (function, len, len),
    (one_of("a", None), None, None),
    (optional(integer(1)), None, None),
    (optional(integer(1), 7), None, 7),
    (each(integer(1)), range(1, 4), (1, 2, 3)),
    (each(integer(1)), np.array([1, 2]), (1, 2)),
    (buffer, bytearray(b"x"), b"x"),
    (buffer, np.zeros(2, np.uint8), b"\0\0"),
]


@pytest.mark.parametrize("rule,value,made", RIGHT, ids=map(str, range(len(RIGHT))))
def test_a_value_arrives_in_the_form_that_the_function_works_with(rule: Any, value: Any, made: Any) -> None:
    found = rule("name", value)
    assert found == made
    assert type(found) is type(made)


REFUSED: dict[str, tuple[Any, list[Any]]] = {
    "whole": (integer(1), [0, True, np.True_, 1.0, np.float64(1), math.nan, "1", None, BIG, -BIG, 2**63]),
    "port": (port, [-1, 65536, "80", True, None]),
    "milliseconds": (milliseconds, [0, -1, 2**63, 0.5, math.nan]),
    "seconds": (seconds, [0, -1, math.nan, math.inf, -math.inf, True, "1", None, BIG, 1 + 1j]),
    "number": (number("0 or more", least=0.0), [-1e-300, math.nan, math.inf, np.float32("nan")]),
    "flag": (boolean, [0, 1, "yes", None, np.int64(1), []]),
    "text": (text, ["", 5, b"a", None, "a\nb", "a\0", "\ud800", "x" * 1001]),
    "path": (path, ["", 3, 0, True, b"a", None, "a\0b", "\ud800", ["a"]]),
    "function": (function, [3, None, "len", dsnb.Dataset.range(1)]),
    "one_of": (one_of("thread", "process"), ["proces", None, 3, ["thread"], np.array(["a", "b"])]),
    "each": (each(integer(1)), ["12", b"12", 3, None, [0], iter(int, 1), Path("a")]),
    "buffer": (buffer, ["text", 2**31, None, [1]]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_can_never_be_right_is_refused_by_name_with_advice(name: str) -> None:
    rule, values = REFUSED[name]
    for value in values:
        error = refused(partial(rule, "argument", value))
        assert "`argument`" in error.what
        assert error.hint


def test_a_value_is_shown_on_one_line_and_not_too_long() -> None:
    for value in (np.arange(1000).reshape(10, 100), "x" * 1000, BIG, Unshowable(), "a\nb"):
        assert len(short_repr(value)) <= 80
        assert "\n" not in short_repr(value)


# ---- functions


def pair(a: Any, b: Any) -> Any:
    return a, b


@wraps(pair)
def wrapper(a: Any) -> Any:
    return pair(a, 1)


@pytest.mark.parametrize(
    "value",
    [len, int, str.upper, np.square, np.float32, lambda a, b=1: a, lambda *a: a, partial(pair, 1), wrapper, print],
    ids=map(str, range(10)),
)
def test_a_function_of_one_argument_is_taken_in_every_form(value: Callable[..., Any]) -> None:
    assert function_of("an element")("map_func", value) is value


@pytest.mark.parametrize(
    "value", [lambda: 1, pair, partial(pair, 1, 2), lambda a, *, b: a, Path.rename], ids=map(str, range(5))
)
def test_a_function_of_other_arguments_is_refused(value: Callable[..., Any]) -> None:
    error = refused(lambda: function_of("an element")("map_func", value))
    assert "`map_func` takes" in error.what
    assert "is called with an element" in error.what


# ---- calls


@checked(batch_size=integer(1), names=each(text), options=integer())
def batch(batch_size: int, drop_remainder: bool = False, *names: str, deterministic: bool | None = None,
          **options: int) -> Any:  # fmt: skip
    """Example.

    >>> batch(np.int64(2), deterministic=np.True_)
    (2, False, (), True, {})
    """
    return batch_size, drop_remainder, names, deterministic, options


@checked(size=integer(1))
class Windows:
    def __init__(self, size: int, *, stride: int = 1) -> None:
        self.size, self.stride = size, stride


MISSPELT: dict[str, Any] = {"sride": 2}


@pytest.mark.parametrize(
    "call,told,advice",
    [
        (lambda: Windows(0), "`size` is 0", "pass 1 or more"),
        (Windows, "Windows() needs `size`", "it takes size, stride"),
        (lambda: Windows(1, **MISSPELT), "Windows() has no argument `sride`", "did you mean 'stride'"),
        (lambda: Windows(1, 2), "Windows() was given 2 arguments, and takes at most 1 without a name (size)", "stride"),
        (lambda: Windows(1, size=2), "Windows() was given `size` twice", "leave one of them out"),
        (lambda: batch(2, 1), "`drop_remainder` is 1, not a truth value", "pass True or False"),
        (lambda: batch(2, deterministic="yes"), "`deterministic` is 'yes'", "pass True or False"),
    ],
    ids=map(str, range(7)),
)
def test_a_call_that_does_not_fit_is_refused_by_name(call: Any, told: str, advice: str) -> None:
    error = refused(call)
    assert told in error.what
    assert advice in error.hint


def test_an_argument_that_is_unknown_missing_or_surplus_is_a_type_error_too() -> None:
    with pytest.raises(TypeError, match="needs `size`"):
        Windows()  # type: ignore[call-arg]


def test_signature_documentation_and_examples_stay() -> None:
    assert list(inspect.signature(batch).parameters) == [
        "batch_size", "drop_remainder", "names", "deterministic", "options",
    ]  # fmt: skip
    assert batch.__doc__.startswith("Example.")
    assert inspect.signature(Windows).parameters["stride"].default == 1
    assert doctest.DocTestFinder().find(batch)[0].examples
    assert dsnb.Dataset.map.__module__ == "dsnb.pipeline.dataset"


# ---- tracebacks

WRONG: dict[str, Callable[[], Any]] = {
    "a rule": lambda: dsnb.Dataset.range(3).batch(0),
    "an unknown argument": lambda: dsnb.Dataset.range(3).batch(2, drop_remaindr=True),  # type: ignore[call-arg]
    "arguments that do not go together": lambda: dsnb.Dataset.range(3).shard(2, 5),
    "a class": lambda: dsnb.DispatcherConfig(port=-1),
    "a frozen class that checks itself": lambda: dsnb.DispatcherConfig(fault_tolerant_mode=True),
    "a file": lambda: dsnb.TextLineDataset(""),
    "a service": lambda: dsnb.start(workers=-1),
    "a cause": lambda: dsnb.Dataset.from_tensors(object()),
    "a nested call": lambda: dsnb.Dataset.range(3).apply(lambda ds: ds.take(-5)),
    "reading": lambda: dsnb.distribute("paralel_epochs", "127.0.0.1:9"),
    "a setting": lambda: setattr(dsnb.Options(), "writeable", True),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_traceback_of_an_argument_error_has_the_caller_s_frames_alone(name: str) -> None:
    try:
        WRONG[name]()
    except InvalidArgumentError as error:
        frames = traceback.extract_tb(error.__traceback__)
        whole_page = "".join(traceback.format_exception(error))
    else:
        pytest.fail("it was accepted")
    assert {frame.filename for frame in frames} == {__file__}
    assert "/dsnb/" not in whole_page.replace(__file__, "")
    assert len(whole_page.splitlines()) <= 16


def test_a_mistake_of_ours_keeps_its_frames() -> None:
    @checked()
    def broken() -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError) as caught:
        broken()
    assert "broken" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_an_error_of_the_state_loses_our_frames_as_well() -> None:
    writer = dsnb.DispatchServer(start=False)
    try:
        with pytest.raises(FailedPreconditionError) as caught:
            writer.join()
    finally:
        writer.stop()
    assert {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)} == {__file__}


# ---- everything that is public

PUBLIC = public_callables()


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_each_argument_of_a_public_function_has_a_rule(name: str) -> None:
    rules = rules_of(PUBLIC[name])
    assert rules is not None, "it is not checked"
    assert [parameter for parameter, rule in rules.items() if rule is None and parameter not in {"self", "cls"}] == []


@pytest.mark.slow
def test_no_rule_is_for_an_argument_that_there_is_not() -> None:
    wrong = []
    for file in Path(inspect.getfile(dsnb)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for call in getattr(node, "decorator_list", ()):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "checked":
                    wrong += [f"{file.name}: {named.arg}" for named in call.keywords if named.arg not in _names(node)]
    assert wrong == []


def _names(node: Any) -> set[str | None]:
    """The parameters of a function, or the fields of a class."""
    if isinstance(node, ast.ClassDef):
        fields = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
        return {None, *fields}
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {None, *(one.arg for one in (*named, arguments.vararg, arguments.kwarg) if one is not None)}

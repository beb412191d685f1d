"""A user's function is called as tf.data calls it, and its errors stand at their elements."""

from __future__ import annotations

import threading
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from dsnb.errors import UserCodeError
from dsnb.pipeline.engine.calls import UserFunction, call_in_segments, call_once
from tests.pipeline.driving import failing_at, plain

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - the test needs an untyped one


def called(function: Any, run: list[Any], *, keep: bool = True) -> tuple[list[Any], BaseException | None]:
    out: list[Any] = []
    failure = UserFunction(function, "map(f)", keep_results=keep).extend(out, run)
    return out, failure


def test_tuples_are_unpacked_into_arguments() -> None:
    assert called(lambda x, y: x - y, [(3, 1), (5, 1)]) == ([2, 4], None)


@pytest.mark.parametrize("element", [{"x": 1}, [1, 2], Point(1, 2), "ab"], ids=["dict", "list", "named tuple", "str"])
def test_everything_else_is_passed_whole(element: Any) -> None:
    assert called(lambda whole: whole == element, [element]) == ([True], None)


def test_a_run_of_both_is_called_element_by_element() -> None:
    assert called(lambda *given: len(given), [(1, 2), [1, 2]]) == ([2, 1], None)


def test_results_before_an_error_are_kept_and_the_error_has_its_place_noted() -> None:
    out, failure = called(failing_at(2), [0, 1, 2, 3])
    assert out == [0, 1]
    assert isinstance(failure, RuntimeError)
    assert failure.__notes__[0].startswith(f"in map(f), {__file__.replace('engine/test_calls', 'driving')}:")


@pytest.mark.parametrize("run", [[(1, 2)], [5, (1, 2)]], ids=["tuples", "mixed"])
@pytest.mark.parametrize("function", [lambda pair: pair, len], ids=["of the user", "written in C"])
def test_an_error_says_that_a_tuple_is_unpacked_if_the_function_cannot_take_its_parts(
    function: Any, run: list[Any]
) -> None:
    _, failure = called(function, run[-1:] if function is len else run)
    assert isinstance(failure, TypeError)
    assert failure.__notes__[0] == (
        "map(f) unpacks a tuple: the function is called with its 2 parts, as 2 arguments; "
        "`lambda *element: ...` takes the whole tuple"
    )


def test_an_error_says_that_a_list_is_not_unpacked_if_the_function_would_take_its_parts() -> None:
    _, failure = called(lambda image, label: (image, label), [[1, 2]])
    assert isinstance(failure, TypeError)
    assert failure.__notes__[0].startswith("map(f) unpacks a tuple, but passes a list as one argument")


@pytest.mark.parametrize("element", [(1, 2), [1, 2], 3], ids=["tuple", "list", "number"])
def test_a_type_error_in_the_function_itself_gets_no_note_about_tuples(element: Any) -> None:
    def adds(*parts: Any) -> Any:
        return parts[0] + "text"

    _, failure = called(adds, [element])
    assert isinstance(failure, TypeError)
    assert [note for note in failure.__notes__ if "tuple" in note] == []


@pytest.mark.parametrize("control", [StopIteration, GeneratorExit, SystemExit])
@pytest.mark.parametrize("run", [[0, 1, 2], [(0,), (1,), (2,)], [0, (1,), 2]], ids=["plain", "tuples", "mixed"])
def test_control_flow_raised_by_the_function_becomes_a_user_code_error(control: type, run: list[Any]) -> None:
    def stop(x: int) -> int:
        if x == 1:
            raise control
        return x

    out, failure = called(stop, run)
    assert out == [0]
    assert isinstance(failure, UserCodeError)
    assert control.__name__ in failure.what
    assert isinstance(failure.__cause__, control)


def test_a_keyboard_interrupt_stays_one_on_the_main_thread_only() -> None:
    def interrupted(_: int) -> int:
        raise KeyboardInterrupt

    assert isinstance(called(interrupted, [1])[1], KeyboardInterrupt)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(called(interrupted, [1])[1]))
    thread.start()
    thread.join()
    assert isinstance(found[0], UserCodeError)


def test_a_function_that_begins_to_return_buffers_after_scalars_is_still_copied() -> None:
    buffer = np.zeros(1)

    def moody(x: int) -> Any:
        buffer[0] = x
        return x if x == 0 else buffer

    function = UserFunction(moody, "map(moody)", keep_results=True)
    out: list[Any] = []
    for x in range(4):
        function.extend(out, [x])
    assert [plain(x) for x in out] == [0, [1], [2], [3]]


def test_segments_hold_errors_at_their_places() -> None:
    found = call_in_segments(UserFunction(failing_at(0, 3, 4), "map(f)", keep_results=True), list(range(6)))
    assert [plain(part) for part in found] == ["RuntimeError", [1, 2], "RuntimeError", "RuntimeError", [5]]


def test_call_once_gives_the_result_or_raises() -> None:
    function = UserFunction(failing_at(1), "map(f)", keep_results=True)
    assert call_once(function, 2) == 2
    with pytest.raises(RuntimeError, match="1 is bad"):
        call_once(function, 1)

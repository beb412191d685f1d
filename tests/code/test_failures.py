"""An error of user code arrives as itself wherever it can, else as a UserCodeError with all its words."""

from __future__ import annotations

import asyncio
import sys
import types
from typing import Any

import pytest

from dsnb.code.failures import exception_of, failure_of
from dsnb.code.tracebacks import RemoteTraceback
from dsnb.errors import DataLossError, UserCodeError


def raised(error: BaseException) -> BaseException:
    """The error with a traceback, as user code raises it."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - control flow too
        return caught


def arrived(error: BaseException, *notes: str) -> Exception:
    return exception_of(failure_of(raised(error), *notes))


class WithArguments(Exception):
    """Its constructor wants more than its arguments say."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")
        self.line = line


class NotFound(FileNotFoundError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "no such file", path)


class Lost(Exception):
    """Cannot be rebuilt: what it says of itself is wrong."""

    def __reduce__(self) -> Any:
        return (Lost, (*self.args, 1, 2), None, None, None, None, None)


class OfItsOwn(Exception):
    """Rebuilt by a reduction that drops what was added to it."""

    def __reduce__(self) -> Any:
        return (OfItsOwn, self.args)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_arrives_as_its_own_class_with_the_remote_traceback() -> None:
    error = arrived(KeyError("row"), "in map(decode)")
    assert type(error) is KeyError
    assert error.args == ("row",)
    assert error.__notes__ == ["in map(decode)"]
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "raise error" in str(error.__cause__)


def test_each_reader_gets_an_error_of_its_own() -> None:
    failure = failure_of(ValueError("x"), "note")
    first, second = exception_of(failure), exception_of(failure)
    first.add_note("mine")
    assert second.__notes__ == ["note"]


@pytest.mark.parametrize("make", [ValueError, OfItsOwn], ids=["kept by its pickle", "lost by its pickle"])
def test_the_users_own_notes_come_once_and_first(make: type[Exception]) -> None:
    error = make("x")
    error.add_note("row 7")
    assert arrived(error, "in map(f)").__notes__ == ["row 7", "in map(f)"]


@pytest.mark.parametrize(
    "error",
    [StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError],
)
def test_what_would_be_mistaken_for_control_flow_is_a_user_code_error(error: type[BaseException]) -> None:
    came = arrived(error(1))
    assert type(came) is UserCodeError
    assert error.__name__ in str(came)
    assert error.__name__ in str(came.__cause__)


def test_an_error_whose_constructor_takes_other_arguments_arrives_as_it_was() -> None:
    """As most do that make their text themselves. Its constructor would fail, or make it of the text once more."""
    error: Any = arrived(WithArguments("data.csv", 3))
    assert type(error) is WithArguments
    assert (str(error), error.line) == ("data.csv:3", 3)
    missing: Any = arrived(NotFound("data.csv"))
    assert type(missing) is NotFound
    assert (missing.errno, missing.filename) == (2, "data.csv")


def test_what_cannot_be_rebuilt_is_a_user_code_error_with_its_name_and_text() -> None:
    came = arrived(Lost("data.csv"))
    assert type(came) is UserCodeError
    assert "Lost: data.csv" in str(came)
    assert "reading can continue" in came.did


def test_an_error_that_holds_what_cannot_be_pickled_is_a_user_code_error() -> None:
    came = arrived(ValueError("bad", (number for number in [1])))
    assert type(came) is UserCodeError
    assert "bad" in str(came)


def test_an_error_whose_text_cannot_be_had_still_arrives() -> None:
    """The failure of printing it must not take the worker's thread along."""
    failure = failure_of(raised(Unprintable()))
    assert failure.kind.endswith("Unprintable")
    assert "RuntimeError" in failure.message
    assert isinstance(exception_of(failure), Unprintable)


def test_text_that_no_other_program_takes_for_text_is_escaped() -> None:
    """A file name of odd bytes: protobuf refuses it, and the stream would break."""
    error = ValueError("bad file \udcff")
    error.add_note("from \udcfe")
    failure = failure_of(raised(error))
    for text in (failure.message, failure.traceback, *failure.notes):
        assert text.encode("utf-8")
    assert "\\udcff" in failure.message
    assert str(exception_of(failure)) == "bad file \udcff", "the error itself is as it was"


def test_an_error_of_dsnbs_own_keeps_its_three_parts() -> None:
    came = arrived(DataLossError("lost", did="skipped", hint="spill"))
    assert isinstance(came, DataLossError)
    assert (came.what, came.did, came.hint) == ("lost", "skipped", "spill")
    assert failure_of(came).message == "lost"


def test_an_error_that_carries_a_gigabyte_does_not_take_it_along() -> None:
    failure = failure_of(raised(ValueError("bad", bytes(3 << 20))), "note" * 100_000)
    assert not failure.pickled
    assert len(failure.message) + len(failure.traceback) + len(failure.notes[0]) < 300_000
    assert type(exception_of(failure)) is UserCodeError


def test_an_error_of_a_cell_arrives_as_the_class_that_the_cell_defined_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """`except Odd` in the next cell means the newest; an older pipeline still raises what was Odd then."""
    cell = types.ModuleType("cell_of_test")
    monkeypatch.setitem(sys.modules, "cell_of_test", cell)
    code = "class Odd(ValueError):\n    def row(self): return VERSION\nVERSION = {}"
    exec(code.format(1), vars(cell))
    failure = failure_of(raised(vars(cell)["Odd"]("x")))
    exec(code.format(2), vars(cell))
    error = exception_of(failure)
    assert type(error) is vars(cell)["Odd"]
    assert (error.args, vars(cell)["Odd"]("x").row()) == (("x",), 2)


def test_an_error_of_a_class_that_is_not_here_arrives_with_its_class() -> None:
    namespace: dict[str, Any] = {"__name__": "nowhere_imported"}
    exec("class Odd(ValueError):\n    def row(self): return 7", namespace)
    error: Any = arrived(namespace["Odd"]("x"))
    assert type(error).__name__ == "Odd"
    assert error.row() == 7


def test_reading_an_error_does_not_write_to_the_class_of_this_process() -> None:
    class Odd(ValueError):
        def row(self) -> int:
            return 7

    before = dict(vars(Odd))
    assert type(arrived(Odd("x"))) is Odd
    assert dict(vars(Odd)) == before

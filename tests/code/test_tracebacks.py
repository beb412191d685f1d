"""Tracebacks end where the user's code does, and cells are called by their numbers where those are known."""

from __future__ import annotations

import linecache
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from dsnb.code.tracebacks import (
    RemoteTraceback,
    clean_for_user,
    format_location,
    format_note,
    format_traceback,
    traceback_text,
)
from dsnb.errors import InvalidArgumentError, UserCodeError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.to_numpy import NumpyConverter

CELL = "/tmp/ipykernel_4711/1234.py"
SOURCE = "def decode(x):\n    return 1 // 0\n"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which the cell was run, as the third."""
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={CELL: 3}))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), CELL)
    yield
    del linecache.cache[CELL]


def decode() -> Callable[[Any], Any]:
    """The cell's function in a process that has nothing of the cell but this."""
    namespace: dict[str, Any] = {}
    exec(compile(SOURCE, CELL, "exec"), namespace)
    return namespace["decode"]  # type: ignore[no-any-return]


def failure_of(dataset: Dataset) -> BaseException:
    with pytest.raises(Exception) as caught:
        list(dataset)
    return caught.value


def as_on_a_worker(error: BaseException) -> BaseException:
    """The error without the frames of this file above those of dsnb."""
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    return error


def files(error: BaseException) -> set[str]:
    return {frame.filename for frame in traceback.extract_tb(error.__traceback__)}


def test_a_workers_traceback_is_filled_in_where_the_cell_was_run(kernel: None) -> None:
    remote = f'Traceback (most recent call last):\n  File "{CELL}", line 2, in decode\nZeroDivisionError: by zero'
    assert format_traceback(remote).splitlines()[1:3] == ["  Cell In[3], line 2, in decode", "    return 1 // 0"]
    assert "Cell In[3], line 2" in str(RemoteTraceback(remote))


def test_source_that_is_there_is_not_filled_in_twice(kernel: None) -> None:
    remote = f'  File "{CELL}", line 2, in decode\n    return 1 // 0\n           ~~^^~~'
    assert format_traceback(remote) == remote.replace(f'File "{CELL}"', "Cell In[3]")


def test_a_traceback_of_a_group_keeps_its_bars(kernel: None) -> None:
    remote = f'  | Traceback\n  |   File "{CELL}", line 2, in decode\n  | ZeroDivisionError'
    assert format_traceback(remote).splitlines()[1:3] == [
        "  |   Cell In[3], line 2, in decode", "  |     return 1 // 0",
    ]  # fmt: skip


def test_a_file_that_nobody_has_here_stays_a_file() -> None:
    remote = '  File "/nowhere/helpers.py", line 7, in prep\nValueError'
    assert format_traceback(remote) == remote


def test_a_note_calls_a_cell_by_its_number_where_it_is_known(kernel: None) -> None:
    assert format_note(f"in map(decode), {CELL}:2") == "in map(decode), cell 3 line 2"
    assert format_location(CELL, 2) == "cell 3 line 2"


def test_a_kernels_file_name_does_not_reach_another_kernels_user() -> None:
    assert format_note(f"in map(decode), {CELL}:2") == "in map(decode), a cell, line 2"
    assert format_note("in map(decode), /home/me/helpers.py:2") == "in map(decode), /home/me/helpers.py:2"


def test_a_worker_leaves_the_name_to_whoever_reads_it() -> None:
    assert format_location(CELL, 2) == f"{CELL}:2"
    assert format_location("<ipython-input-7-abc>", 2) == "cell 7 line 2"


def test_the_text_of_a_users_error_has_only_frames_of_the_users() -> None:
    text = traceback_text(failure_of(Dataset.range(3).map(decode())))
    assert "dsnb/pipeline" not in text
    assert f'File "{CELL}", line 2, in decode' in text
    assert "in map(decode)" not in text, "notes travel beside it"


def test_the_text_of_a_page_of_ours_is_nothing_and_of_its_cause_what_the_user_did() -> None:
    assert traceback_text(as_on_a_worker(failure_of(Dataset.range(3).map(lambda x: object())))) == ""

    def stop(x: Any) -> Any:
        raise StopIteration("enough")

    error = as_on_a_worker(failure_of(Dataset.range(3).map(stop)))
    assert isinstance(error, UserCodeError)
    error.__cause__ = _raised(KeyboardInterrupt)
    text = traceback_text(error)
    assert "KeyboardInterrupt" in text
    assert "UserCodeError" not in text


def reading(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, without a signature that would tell at the call what it takes."""
    return lru_cache(function)


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.range(3).map(abs).map(lambda x, y: x),
        Dataset.from_generator(reading(lambda x: [x])),
        Dataset.range(3).scan(0, reading(lambda x: (x, x))),
    ],
    ids=["map", "generator", "scan"],
)
def test_a_function_that_takes_other_arguments_shows_no_frames_of_ours(dataset: Dataset) -> None:
    error = failure_of(dataset)
    assert [file for file in files(error) if "/dsnb/" in file and not file.endswith("engine/iterator.py")] == []
    assert traceback_text(as_on_a_worker(error)) == ""
    assert error.__notes__


def _raised(kind: type[BaseException]) -> BaseException:
    try:
        raise kind
    except kind as error:
        return error


def test_a_mistake_of_ours_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumpyConverter, "convert", None)
    error = failure_of(Dataset.range(3))
    assert "dsnb/pipeline/engine/iterator.py" in traceback_text(error)
    assert len([file for file in traceback.extract_tb(error.__traceback__) if "/dsnb/" in file.filename]) > 1


def test_what_the_iterator_raises_shows_the_call_and_the_users_function_and_nothing_between() -> None:
    error = failure_of(Dataset.range(3).map(decode()).batch(2).prefetch(1))
    ours = [file for file in files(error) if "/dsnb/" in file]
    assert files(error) >= {__file__, CELL}
    assert all(file.endswith("engine/iterator.py") for file in ours), "the frame that says that it is to be hidden"
    assert error.__notes__ == ["in map(decode), a cell, line 2"]


def test_a_page_of_ours_shows_the_call_alone() -> None:
    error = failure_of(Dataset.range(3).map(lambda x: object()))
    assert isinstance(error, InvalidArgumentError)
    assert [file for file in files(error) if "/dsnb/" in file and not file.endswith("engine/iterator.py")] == []


def test_causes_contexts_and_members_of_groups_are_shortened_too() -> None:
    def load(x: Any) -> Any:
        try:
            list(Dataset.range(1).map(decode()))
        except ZeroDivisionError as error:
            raise ExceptionGroup("several", [error]) from error

    text = traceback_text(failure_of(Dataset.range(3).map(load)))
    assert text.count(f'File "{CELL}"') == 2
    assert "dsnb/pipeline" not in text


def test_an_interrupt_at_an_instruction_without_a_line_is_shown_as_one() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    interrupted.__code__ = interrupted.__code__.replace(co_linetable=b"")  # what the compiler gives some instructions
    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    error = caught.value
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is not None
    assert error.__traceback__.tb_next.tb_lineno is None
    clean_for_user(error)
    assert error.__traceback__.tb_next.tb_frame.f_code is interrupted.__code__

"""Readable tracebacks, notes and source locations: without dsnb's own frames, with cells by their numbers.

A process worker knows a cell only by ipykernel's internal file name, and does not have its source. The kernel that ran
the cell has its number and source, so they are filled in when the reader's process formats a worker's traceback.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterator
from traceback import TracebackException

from dsnb.errors import DsnbError, keep_frames, traceback_entries

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Files that call user functions. A traceback that ends in one of them is a user's error too: a function written in C
# failed, or the arguments did not match.
_USER_CALL_FILES = {
    os.path.join(_OURS, "pipeline", *file)
    for file in (("engine", "calls.py"), ("sources", "generator.py"), ("operations", "scan.py"))
}
_IPYTHON_INPUT = re.compile(r"<ipython-input-(\d+)-")
_KERNEL_FILE = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")
_CELL_LOCATION = re.compile(r"(?<!\S)(\S*ipykernel_\d+[/\\]\d+\.py):(\d+)")
_FRAME_LINE = re.compile(r'(?P<indent>[\s|]*)File "(?P<file>.+?)", line (?P<line>\d+)(?P<where>.*)')


class RemoteTraceback(Exception):
    """The traceback of an error in the remote process; shown as the cause of the error raised in this process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{format_traceback(self.text).rstrip()}\n"


# ---- where it happened


def traceback_text(error: BaseException) -> str:
    """An error's traceback as Python prints it, without dsnb's frames and without the error's notes.

    Empty if there are no other frames, no cause and no context. An internal error of dsnb keeps its frames. The notes
    are left out because they are sent separately.
    """
    formatted = TracebackException.from_exception(error)
    formatted.__notes__ = None  # the value that Python sets if there are no notes
    for part, original in _chain(formatted, error):
        files = [frame.filename for frame in part.stack]
        if not _is_internal_error(original, files):
            part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(_OURS)]
    if not formatted.stack and isinstance(error, DsnbError):
        return traceback_text(error.__cause__) if error.__cause__ is not None else ""
    return "".join(formatted.format()) if formatted.stack or error.__cause__ or error.__context__ else ""


def _is_internal_error(error: BaseException, files: list[str]) -> bool:
    """Whether an error with frames in these files is a bug in dsnb.

    A `DsnbError`, an error of user code and an interrupt are none.
    """
    ours = bool(files) and files[-1].startswith(_OURS) and files[-1] not in _USER_CALL_FILES
    expected = isinstance(error, DsnbError | KeyboardInterrupt) or isinstance(error.__cause__, RemoteTraceback)
    return ours and not expected


def _chain(formatted: TracebackException, error: BaseException) -> Iterator[tuple[TracebackException, BaseException]]:
    """The error, its causes and contexts, and the members of groups, each with its `TracebackException`."""
    waiting = [(formatted, error)]
    while waiting:
        part, original = waiting.pop()
        yield part, original
        more = [(part.__cause__, original.__cause__), (part.__context__, original.__context__)]
        more += zip(part.exceptions or (), getattr(original, "exceptions", ()), strict=False)
        waiting += [(inner, its) for inner, its in more if inner is not None and its is not None]


def format_location(filename: str, line: int) -> str:
    """A line of a file as text; `cell 3 line 2` if it is a cell whose number this process knows."""
    number = cell_number(filename)
    return f"{filename}:{line}" if number is None else f"cell {number} line {line}"


def cell_number(filename: str) -> int | None:
    """The number of the cell with the code that IPython compiled under a file name; None if this process knows none."""
    if numbered := _IPYTHON_INPUT.match(filename):
        return int(numbered[1])
    # ipykernel names cells by a hash; only the shell that ran them knows their numbers. IPython is never imported here:
    # if it is not imported yet, this process is no kernel.
    if not _KERNEL_FILE.search(filename):
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None) or {}
    return numbers.get(filename)


# ---- for the reader


def format_note(note: str) -> str:
    """A note in which the file names of cells are replaced by the cells' numbers."""
    return _CELL_LOCATION.sub(_format_cell_location, note)


def _format_cell_location(found: re.Match[str]) -> str:
    named = format_location(found[1], int(found[2]))
    return f"a cell, line {found[2]}" if named == found[0] else named


def format_traceback(text: str) -> str:
    """A traceback from another process, with the source lines and cell numbers that only this process knows."""
    lines = text.split("\n")
    return "\n".join(part for at, line in enumerate(lines) for part in _format_line(line, lines[at + 1 : at + 2]))


def _format_line(line: str, following: list[str]) -> Iterator[str]:
    frame = _FRAME_LINE.fullmatch(line)
    if frame is None:
        yield line
        return
    number = cell_number(frame["file"])
    yield line if number is None else f"{frame['indent']}Cell In[{number}], line {frame['line']}{frame['where']}"
    deeper = frame["indent"] + "  "
    if not (following and following[0].startswith(deeper)):
        source = linecache.getline(frame["file"], int(frame["line"])).strip()
        if source:
            yield deeper + source


def clean_for_user(error: BaseException) -> None:
    """Prepare an error that dsnb raises to the user: remove dsnb's frames from its traceback, and format its notes.

    An internal error of dsnb keeps its frames. An interrupt does not: where it hit tells nothing, and a notebook keeps
    the last traceback, whose frames would hold the connection of an interrupted read open.
    """
    if hasattr(error, "__notes__"):
        error.__notes__ = [format_note(note) if isinstance(note, str) else note for note in error.__notes__]
    files = [entry.tb_frame.f_code.co_filename for entry in traceback_entries(error)]
    if not _is_internal_error(error, files):
        keep_frames(error, lambda frame: not frame.f_code.co_filename.startswith(_OURS))

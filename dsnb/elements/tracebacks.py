"""Tracebacks, notes and places as a person reads them: dsnb's own frames left out, cells by their numbers.

A process worker knows a cell by a file name that nobody ever saw, and has no source to show for it. The kernel that ran
the cell has both: what arrives from a worker is filled in where it is read.
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
# Where users' functions are called: what ends there is a function written in C, or one that takes other arguments.
_USER_CALL_FILES = {
    os.path.join(_OURS, "pipeline", *file)
    for file in (("engine", "calls.py"), ("sources", "generator.py"), ("operations", "scan.py"))
}
_IPYTHON_INPUT = re.compile(r"<ipython-input-(\d+)-")
_KERNEL_FILE = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")
_CELL_LOCATION = re.compile(r"(?<!\S)(\S*ipykernel_\d+[/\\]\d+\.py):(\d+)")
_FRAME_LINE = re.compile(r'(?P<indent>[\s|]*)File "(?P<file>.+?)", line (?P<line>\d+)(?P<where>.*)')


class RemoteTraceback(Exception):
    """The traceback of an error in the process where it happened; shown as the cause of the error raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{format_traceback(self.text).rstrip()}\n"


# ---- where it happened


def traceback_text(error: BaseException) -> str:
    """An error's traceback as Python prints it, without dsnb's frames, nor the error's notes, which travel beside it.

    Empty where there are no others and nothing led to it. A mistake of dsnb's keeps its frames.
    """
    formatted = TracebackException.from_exception(error)
    formatted.__notes__ = None  # what it is where there are none
    for part, original in _chain(formatted, error):
        files = [frame.filename for frame in part.stack]
        if not _is_internal_error(original, files):
            part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(_OURS)]
    if not formatted.stack and isinstance(error, DsnbError):
        return traceback_text(error.__cause__) if error.__cause__ is not None else ""
    return "".join(formatted.format()) if formatted.stack or error.__cause__ or error.__context__ else ""


def _is_internal_error(error: BaseException, files: list[str]) -> bool:
    """Whether an error with frames in these files is no page of ours, and not the user's either."""
    ours = bool(files) and files[-1].startswith(_OURS) and files[-1] not in _USER_CALL_FILES
    return ours and not isinstance(error, DsnbError) and not isinstance(error.__cause__, RemoteTraceback)


def _chain(formatted: TracebackException, error: BaseException) -> Iterator[tuple[TracebackException, BaseException]]:
    """The error, its causes and contexts, and the members of groups, each beside its description."""
    waiting = [(formatted, error)]
    while waiting:
        part, original = waiting.pop()
        yield part, original
        more = [(part.__cause__, original.__cause__), (part.__context__, original.__context__)]
        more += zip(part.exceptions or (), getattr(original, "exceptions", ()), strict=False)
        waiting += [(inner, its) for inner, its in more if inner is not None and its is not None]


def format_location(filename: str, line: int) -> str:
    """A line of a file, as `cell 3 line 2` where it is a cell's whose number is known here."""
    numbered = _IPYTHON_INPUT.match(filename)
    number = int(numbered[1]) if numbered else _cell_number(filename)
    return f"{filename}:{line}" if number is None else f"cell {number} line {line}"


def _cell_number(filename: str) -> int | None:
    # ipykernel names cells by a hash; only the shell that ran them knows their numbers. Never import it: without it
    # there is no kernel here.
    if not _KERNEL_FILE.search(filename):
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None) or {}
    return numbers.get(filename)


# ---- for the reader


def format_note(note: str) -> str:
    """A note with the cells that it names by their files called by their numbers."""
    return _CELL_LOCATION.sub(_format_cell_location, note)


def _format_cell_location(found: re.Match[str]) -> str:
    named = format_location(found[1], int(found[2]))
    return f"a cell, line {found[2]}" if named == found[0] else named


def format_traceback(text: str) -> str:
    """A traceback from another process, with the source lines and the cells' numbers that are known only here."""
    lines = text.split("\n")
    return "\n".join(part for at, line in enumerate(lines) for part in _format_line(line, lines[at + 1 : at + 2]))


def _format_line(line: str, following: list[str]) -> Iterator[str]:
    frame = _FRAME_LINE.fullmatch(line)
    if frame is None:
        yield line
        return
    number = _cell_number(frame["file"])
    yield line if number is None else f"{frame['indent']}Cell In[{number}], line {frame['line']}{frame['where']}"
    deeper = frame["indent"] + "  "
    if not (following and following[0].startswith(deeper)):
        source = linecache.getline(frame["file"], int(frame["line"])).strip()
        if source:
            yield deeper + source


def clean_for_user(error: BaseException) -> None:
    """Make an error that leaves dsnb end where the user's code does: our frames out of its traceback, notes legible.

    An error of ours that is no page but a mistake keeps them.
    """
    if hasattr(error, "__notes__"):
        error.__notes__ = [format_note(note) if isinstance(note, str) else note for note in error.__notes__]
    files = [entry.tb_frame.f_code.co_filename for entry in traceback_entries(error)]
    if not _is_internal_error(error, files):
        keep_frames(error, lambda frame: not frame.f_code.co_filename.startswith(_OURS))

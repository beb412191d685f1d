"""Which files were opened while something was made, and in which state: after a change it is out of date.

Sources of datasets note what they open in the `OpenedFiles` of the run that they belong to. `notes` are kept with what
was made in the run, and `first_change` looks at the files again before it is used.
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

import xxhash

How = Literal["change", "content", "strict", "pattern"]
"""What a file is known by: size and time of its last change; its content; all that the system tells of it. Or what a
pattern of paths is known by: the files that match it."""

FileNote = tuple[How, str, str]
"""By what it is known, its path, and its state in words."""

_MISSING: Final = "not there"
_TORN: Final = "changed while it was read"
_PIECE: Final = 1 << 20


class OpenedFiles:
    """The files that were opened, each as it was then. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[str, os.stat_result | None] = {}
        self._new: set[str] = set()
        self._torn: set[str] = set()
        self._noted: dict[tuple[How, str], str] = {}

    def add(self, path: str, found: os.stat_result | None) -> None:
        """Note a file that was opened.

        Args:
            path: The file.
            found: What the system tells of the open file; None for one that is not there.
        """
        path = os.path.abspath(path)
        with self._lock:
            if path not in self._opened:
                self._opened[path] = found
                self._new.add(path)
            elif not _is_same(self._opened[path], found):
                self._torn.add(path)
                self._new.add(path)

    def add_pattern(self, pattern: str, found: Sequence[str]) -> None:
        """Note which files a pattern matched."""
        self.add_notes([("pattern", pattern, _listing(found))])

    def add_notes(self, notes: Iterable[FileNote]) -> None:
        """Take over what was noted when something was made that is used now."""
        with self._lock:
            for how, name, state in notes:
                if self._noted.setdefault((how, name), state) != state:
                    self._noted[how, name] = _TORN

    def notes(self, how: How) -> tuple[FileNote, ...]:
        """All that was noted, sorted; a file that has changed since it was opened is in no state that can come again.

        Args:
            how: What the files that were opened are to be known by.
        """
        with self._lock:
            opened, noted = dict(self._opened), dict(self._noted)
        notes: list[FileNote] = [(kind, name, state) for (kind, name), state in noted.items()]
        notes += [(how, path, self._state(path, found, how)) for path, found in opened.items()]
        return tuple(sorted(notes))

    def take(self, how: How) -> tuple[FileNote, ...]:
        """What was noted since the last call, as `notes` gives it."""
        with self._lock:
            opened = {path: self._opened[path] for path in self._new}
            noted, self._noted = self._noted, {}
            self._new.clear()
        notes: list[FileNote] = [(kind, name, state) for (kind, name), state in noted.items()]
        notes += [(how, path, self._state(path, found, how)) for path, found in opened.items()]
        return tuple(sorted(notes))

    def _state(self, path: str, opened: os.stat_result | None, how: How) -> str:
        torn = path in self._torn or not _is_same(opened, _status(path))
        return _TORN if torn else _told(how, opened, path)

    def forget_removed(self) -> None:
        """Forget the files that are not there any more: what was made has made and removed them itself."""
        with self._lock:
            self._opened = {path: found for path, found in self._opened.items() if found is None or _status(path)}


_current: ContextVar[OpenedFiles | None] = ContextVar("dsnb_opened_files", default=None)


def current() -> OpenedFiles | None:
    """Where this thread notes the files that datasets open; None where nobody asks."""
    return _current.get()


@contextmanager
def noting(files: OpenedFiles | None) -> Iterator[None]:
    """Note in `files` what the datasets open that this thread begins to iterate while the block runs."""
    token = _current.set(files)
    try:
        yield
    finally:
        _current.reset(token)


def note_files(notes: Iterable[FileNote]) -> None:
    """Note what was read for something that this thread uses now, if somebody asks."""
    files = current()
    if files is not None:
        files.add_notes(notes)


def states_of(paths: Iterable[str], how: How) -> tuple[FileNote, ...]:
    """The states of files now."""
    return tuple((how, path, _told(how, _status(path), path)) for path in paths)


def first_change(notes: Iterable[FileNote]) -> str:
    """The first of some files that is not as it was noted, in words; empty if all are."""
    for how, name, state in notes:
        now = _listing(matches(name)) if how == "pattern" else _told(how, _status(name), name)
        if now != state:
            return _change(how, name, state, now)
    return ""


def matches(pattern: str) -> list[str]:
    """The files that a pattern matches, sorted."""
    return sorted(glob.glob(pattern, recursive=True))


def _change(how: How, name: str, state: str, now: str) -> str:
    if how == "pattern":
        return f"the files that match {name}: {state.partition(' (')[0]} are now {now.partition(' (')[0]}, or others"
    if state == _TORN:
        return f"the file {name} {_TORN}"
    if now == _MISSING:
        return f"the file {name} is not there any more"
    return f"the file {name} is new" if state == _MISSING else f"the file {name} has changed since it was read"


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _is_same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    """Whether two looks at a path found the same file, with nothing written to it between them."""
    if one is None or other is None:
        return one is other
    return os.path.samestat(one, other) and (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


def _told(how: How, found: os.stat_result | None, path: str) -> str:
    if found is None:
        return _MISSING
    size = f"{found.st_size} bytes"
    if how == "content":
        return f"{size}, content {_digest(path)}"
    changed = f"{size}, changed at {found.st_mtime_ns}"
    # A file that was copied with its times, or set back to them, has another inode or another time of this kind.
    return f"{changed} and {found.st_ctime_ns}, inode {found.st_ino}" if how == "strict" else changed


def _listing(found: Sequence[str]) -> str:
    digest = xxhash.xxh3_64_hexdigest("\0".join(found).encode("utf-8", "surrogateescape"))
    return f"{len(found)} ({digest})"


def _digest(path: str) -> str:
    digest = xxhash.xxh3_128()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:
        return _MISSING
    return digest.hexdigest()

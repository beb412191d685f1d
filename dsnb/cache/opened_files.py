"""Tracks which files were opened while something was made, and their states, to detect that it is out of date.

Sources of datasets register the files that they open in the `OpenedFiles` of their run. The `states` are stored with
the result of the run, and `first_change` compares them with the files before the result is used.
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

from dsnb.errors import DsnbError
from dsnb.storage import urls

FileComparison = Literal["change", "content", "strict", "pattern", "url"]
"""How a file is compared. "change": by size and modification time. "content": by size and hash. "strict": by size,
modification time, status change time and inode. "pattern": the path is a pattern, compared by the files that match.
"url": the path is a URL, compared by the size and version that its store reports."""

FileState = tuple[FileComparison, str, str]
"""How the file is compared, its path, and its state as text."""

_MISSING: Final = "not there"
_CHANGED_WHILE_READ: Final = "changed while it was read"
_PIECE: Final = 1 << 20


class OpenedFiles:
    """The files that were opened, each with its state at that time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[str, os.stat_result | None] = {}
        self._not_yet_taken: set[str] = set()
        self._changed_while_read: set[str] = set()
        self._other_states: dict[tuple[FileComparison, str], str] = {}

    def add(self, path: str, found: os.stat_result | None) -> None:
        """Note a file that was opened.

        Args:
            path: The file.
            found: The `os.stat_result` of the open file; None if the file does not exist.
        """
        path = os.path.abspath(path)
        with self._lock:
            if path not in self._opened:
                self._opened[path] = found
                self._not_yet_taken.add(path)
            elif not _is_same(self._opened[path], found):
                self._changed_while_read.add(path)
                self._not_yet_taken.add(path)

    def add_pattern(self, pattern: str, found: Sequence[str]) -> None:
        """Note the files that a pattern matched."""
        self.add_states([("pattern", pattern, _describe_matches(found))])

    def add_url(self, url: str, version: str | None) -> None:
        """Note a file that was opened by its URL.

        Args:
            url: The file.
            version: Its `urls.version_text`; None if the file does not exist.
        """
        self.add_states([("url", url, version or _MISSING)])

    def add_states(self, states: Iterable[FileState]) -> None:
        """Add the states that were noted when something was made that is used now."""
        with self._lock:
            for comparison, name, state in states:
                if self._other_states.setdefault((comparison, name), state) != state:
                    self._other_states[comparison, name] = _CHANGED_WHILE_READ

    def states(self, comparison: FileComparison) -> tuple[FileState, ...]:
        """All states, sorted. A file that has changed since it was opened gets a state that no file can have again.

        Args:
            comparison: How the files that were opened are compared.
        """
        with self._lock:
            opened, others = dict(self._opened), dict(self._other_states)
        states: list[FileState] = [(kind, name, state) for (kind, name), state in others.items()]
        states += [(comparison, path, self._state(path, found, comparison)) for path, found in opened.items()]
        return tuple(sorted(states))

    def take_new_states(self, comparison: FileComparison) -> tuple[FileState, ...]:
        """The states of files that were added since the last call, in the form of `states`."""
        with self._lock:
            opened = {path: self._opened[path] for path in self._not_yet_taken}
            others, self._other_states = self._other_states, {}
            self._not_yet_taken.clear()
        states: list[FileState] = [(kind, name, state) for (kind, name), state in others.items()]
        states += [(comparison, path, self._state(path, found, comparison)) for path, found in opened.items()]
        return tuple(sorted(states))

    def _state(self, path: str, opened: os.stat_result | None, comparison: FileComparison) -> str:
        changed = path in self._changed_while_read or not _is_same(opened, _stat(path))
        return _CHANGED_WHILE_READ if changed else _describe_state(comparison, opened, path)

    def forget_removed(self) -> None:
        """Forget files that no longer exist: the run has created and removed them itself."""
        with self._lock:
            self._opened = {path: found for path, found in self._opened.items() if found is None or _stat(path)}


_current: ContextVar[OpenedFiles | None] = ContextVar("dsnb_opened_files", default=None)


def current_opened_files() -> OpenedFiles | None:
    """The object in which this thread notes the files that datasets open; None if they are not tracked."""
    return _current.get()


@contextmanager
def track_opened_files(files: OpenedFiles | None) -> Iterator[None]:
    """Note in `files` what is opened by datasets whose iteration this thread starts during the block."""
    token = _current.set(files)
    try:
        yield
    finally:
        _current.reset(token)


def add_file_states(states: Iterable[FileState]) -> None:
    """Add states to this thread's `OpenedFiles`, if there is one."""
    files = current_opened_files()
    if files is not None:
        files.add_states(states)


def file_states(paths: Iterable[str], comparison: FileComparison) -> tuple[FileState, ...]:
    """The states of files now."""
    kinds: list[tuple[FileComparison, str]] = [("url" if urls.is_url(path) else comparison, path) for path in paths]
    return tuple((kind, path, _state_now(kind, path)) for kind, path in kinds)


def first_change(states: Iterable[FileState]) -> str:
    """Describe the first file that is not in its noted state; "" if all are."""
    for comparison, name, state in states:
        now = _state_now(comparison, name)
        if now != state:
            return _describe_change(comparison, name, state, now)
    return ""


def _state_now(comparison: FileComparison, name: str) -> str:
    if comparison == "pattern":
        return _describe_matches(glob_files(name))
    return _url_state(name) if comparison == "url" else _describe_state(comparison, _stat(name), name)


def _url_state(url: str) -> str:
    try:
        return urls.version_text(url) or _MISSING
    except (DsnbError, OSError) as error:  # a result that cannot be compared is made again
        return f"cannot be reached ({type(error).__name__})"


def glob_files(pattern: str) -> list[str]:
    """The files that a pattern matches, sorted."""
    if urls.is_url(pattern):
        return urls.matching_urls(pattern)
    return sorted(glob.glob(pattern, recursive=True))


def _describe_change(comparison: FileComparison, name: str, state: str, now: str) -> str:
    if comparison == "pattern":
        return f"the files that match {name}: {state.partition(' (')[0]} are now {now.partition(' (')[0]}, or others"
    name = urls.shown(name)
    if state == _CHANGED_WHILE_READ:
        return f"the file {name} {_CHANGED_WHILE_READ}"
    if now == _MISSING:
        return f"the file {name} is not there any more"
    return f"the file {name} is new" if state == _MISSING else f"the file {name} has changed since it was read"


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _is_same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    """Whether two `stat` results are of the same file, without a write in between."""
    if one is None or other is None:
        return one is other
    return os.path.samestat(one, other) and (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


def _describe_state(comparison: FileComparison, found: os.stat_result | None, path: str) -> str:
    if found is None:
        return _MISSING
    size = f"{found.st_size} bytes"
    if comparison == "content":
        return f"{size}, content {_hash_file(path)}"
    changed = f"{size}, changed at {found.st_mtime_ns}"
    # A file that was copied with its times, or whose times were set back, differs in its inode or change time.
    return f"{changed} and {found.st_ctime_ns}, inode {found.st_ino}" if comparison == "strict" else changed


def _describe_matches(found: Sequence[str]) -> str:
    digest = xxhash.xxh3_64_hexdigest("\0".join(found).encode("utf-8", "surrogateescape"))
    return f"{len(found)} ({digest})"


def _hash_file(path: str) -> str:
    digest = xxhash.xxh3_128()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:
        return _MISSING
    return digest.hexdigest()

"""Tracks which files were opened while something was made, and their states, to detect that it is out of date.

Sources of datasets register the files that they open in the `OpenedFiles` of their run. The `states` are stored with
the result of the run, and `first_change` compares them with the files before the result is used.
"""

from __future__ import annotations

import glob
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

import xxhash

from dsnb.errors import DsnbError
from dsnb.storage import urls

FileComparison = Literal["change", "content", "strict", "pattern", "url", "worker", "unknown"]
"""How a file is compared. "change": by size and modification time. "content": by size and hash. "strict": by size,
modification time, status change time and inode. "pattern": the path is a pattern, compared by the files that match.
"url": the path is a URL, compared by the size and version that its store reports. "worker": as "strict", of a file that
a worker read in another state than this host knew. "unknown": not compared, so always changed; the state says why."""

FileState = tuple[FileComparison, str, str]
"""How the file is compared, its path, and its state as text."""

MOST_ON_WORKER: Final = 20_000
"""How many files a worker's task notes for its readers: a few megabytes."""
TOO_MANY: Final[FileState] = ("unknown", "", f"a worker opened more than {MOST_ON_WORKER:,} files, too many to compare")

_MISSING: Final = "not there"
_CHANGED_WHILE_READ: Final = "changed while it was read"
_PIECE: Final = 1 << 20


class OpenedFiles:
    """The files that were opened, each with its state at that time. Thread-safe.

    Args:
        most: How many to keep. If there are more, the states have `TOO_MANY` in place of the rest.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
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
                if self._has_room():
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
                known = self._other_states.get((comparison, name))
                if known is not None or self._has_room():
                    self._other_states[comparison, name] = state if known in (None, state) else _CHANGED_WHILE_READ

    def _has_room(self) -> bool:
        """Whether one more may be kept; if not, note that. Requires the lock."""
        if len(self._opened) + len(self._other_states) < self._most:
            return True
        comparison, name, state = TOO_MANY
        self._other_states[comparison, name] = state
        return False

    def add_from_worker(self, states: Iterable[FileState]) -> None:
        """Add states that a worker noted, perhaps on another host; those of the files that it opened are "strict".

        A file that is in the same state here counts as opened here.
        """
        for comparison, name, state in states:
            found = _stat(name) if comparison == "strict" else None
            if found is not None and _describe_state("strict", found, name) == state:
                self.add(name, found)
            else:
                self.add_states([("worker" if comparison == "strict" else comparison, name, state)])

    def states(self, comparison: FileComparison) -> tuple[FileState, ...]:
        """All states, sorted. A file that has changed since it was opened gets a state that no file can have again.

        Args:
            comparison: How the files that were opened are compared.
        """
        with self._lock:
            opened, others = dict(self._opened), dict(self._other_states)
        return self._describe(opened, others, comparison)

    def take_new_states(self, comparison: FileComparison) -> tuple[FileState, ...]:
        """The states of files that were added since the last call, in the form of `states`."""
        with self._lock:
            opened = {path: self._opened[path] for path in self._not_yet_taken}
            others, self._other_states = self._other_states, {}
            self._not_yet_taken.clear()
        return self._describe(opened, others, comparison)

    def take_states(self, comparison: FileComparison) -> tuple[FileState, ...]:
        """All states, in the form of `states`; then forget them."""
        if not (self._opened or self._other_states):  # the usual case, asked for each frame
            return ()
        with self._lock:
            opened, self._opened = self._opened, {}
            others, self._other_states = self._other_states, {}
            self._not_yet_taken.clear()
        return self._describe(opened, others, comparison)

    def _describe(
        self,
        opened: Mapping[str, os.stat_result | None],
        others: Mapping[tuple[FileComparison, str], str],
        comparison: FileComparison,
    ) -> tuple[FileState, ...]:
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


def track_in_this_thread(files: OpenedFiles) -> None:
    """Like `track_opened_files`, for as long as this thread runs."""
    _current.set(files)


def add_file_states(states: Iterable[FileState]) -> None:
    """Add states to this thread's `OpenedFiles`, if there is one."""
    files = current_opened_files()
    if files is not None:
        files.add_states(states)


def file_states(paths: Iterable[str], comparison: FileComparison) -> tuple[FileState, ...]:
    """The states of files now."""
    kinds: list[tuple[FileComparison, str]] = [("url" if urls.is_url(path) else comparison, path) for path in paths]
    return tuple((kind, path, _state_now(kind, path)) for kind, path in kinds)


def comparable_here(states: Iterable[FileState]) -> tuple[FileState, ...]:
    """States for a recording, which several hosts may read: without the files that this host does not have.

    Of a file that a worker read in another state than it has here, only size and modification time are compared.
    """
    found: list[FileState] = []
    for comparison, name, state in states:
        if comparison == "worker" and _stat(name):
            found.append(("change", name, state.partition(" and ")[0]))
        elif comparison not in ("worker", "unknown"):
            found.append((comparison, name, state))
    return tuple(found)


def first_change(states: Iterable[FileState]) -> str:
    """Describe the first file that is not in its noted state; "" if all are."""
    for comparison, name, state in states:
        now = _state_now(comparison, name)
        if now != state:
            return _describe_change(comparison, name, state, now)
    return ""


def _state_now(comparison: FileComparison, name: str) -> str:
    if comparison == "unknown":
        return ""
    if comparison == "pattern":
        return _describe_matches(glob_files(name))
    if comparison == "url":
        return _url_state(name)
    return _describe_state("strict" if comparison == "worker" else comparison, _stat(name), name)


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
    if comparison == "unknown":
        return state
    if comparison == "pattern":
        return f"the files that match {name}: {state.partition(' (')[0]} are now {now.partition(' (')[0]}, or others"
    name = urls.shown(name)
    if comparison == "worker":
        return f"the file {name} is not as a worker read it: it has changed, or the worker's host has another"
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

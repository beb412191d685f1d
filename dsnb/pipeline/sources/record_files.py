"""Stages of sources that read one file after another.

Theory of operation. An interrupt (Ctrl-C in a cell) may end a read anywhere: in a buffer of the standard library, in a
decompressor, in a generator. What these had in hand is lost, and none of them can go on. So the reader is dropped, and
the next pull opens the same file again and reads past the records that it has already given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from dsnb.pipeline.engine.stage import Run
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.splits import FileSource, SourceStage


class Closable(Protocol):
    """Reads one file."""

    def close(self) -> None:
        """Close the file."""
        ...


class FileReader(Closable, Protocol):
    """Reads the records of one file."""

    def next(self) -> Any:
        """Return the next record; None at the end.

        Raises:
            Exception: in place of a record. The next call continues, or returns None if the rest cannot be read.
        """
        ...


R = TypeVar("R", bound=Closable)


class FilesStage(SourceStage, Generic[R]):
    """Reads one file after another, with one file open at a time. Subclasses implement `read` and `read_past`.

    A file that cannot be opened is one error, and reading continues with the next file.

    Args:
        operation: The source.
        context: Supplies the numbers of the files to read.
        open_reader: Opens a file, given its path or URL.
    """

    takes_positions_when_needed = True

    def __init__(self, operation: FileSource, context: BuildContext, open_reader: Callable[[str], R]) -> None:
        super().__init__(operation.name, context, len(operation.files))
        self._files = operation.files
        self._open_reader = open_reader
        self._finished = 0
        """How many files are read; one more was taken if a file is being read, or an interrupt has left it closed."""
        self._reader: R | None = None
        self._given = 0
        """How many records of it were read, including errors in place of records."""
        self._failed: set[int] = set()
        """Which of them were errors."""

    def produce(self, want: int) -> Run:
        try:
            return self.read(want)
        except Exception:
            raise
        except BaseException:
            self._close_reader()
            raise

    def read(self, want: int) -> Run:
        """Do the work of `produce`. Records that were not returned when it is interrupted, but counted, are kept."""
        raise NotImplementedError

    def read_past(self, reader: R, count: int) -> None:
        """Drop records that the file has given before an interrupt."""
        raise NotImplementedError

    def _open_next(self, unseen: int = 0) -> R | None:
        """Open the next file, or again the one that an interrupt has left closed; None at the end."""
        if self._splits.taken == self._finished:
            self.note_splits_finished(unseen)
            self._given, self._failed = 0, set()
            if not self._splits.take(1):
                return None
        try:
            reader = self._open_reader(self._path)
            self._reader = reader
            if self._given:
                self.read_past(reader, self._given)
        except Exception:
            self._close_file()
            raise
        return reader

    @property
    def _path(self) -> str:
        """The file that is being read."""
        return self._files[self._splits.last]

    def _close_file(self) -> None:
        self._finished = self._splits.taken
        self._close_reader()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def release(self, unread: int) -> None:
        self._close_file()


class RecordFilesStage(FilesStage[FileReader]):
    """Returns records."""

    def __init__(self, operation: FileSource, context: BuildContext, open_reader: Callable[[str], FileReader]) -> None:
        super().__init__(operation, context, open_reader)
        self._run: list[Any] = []
        """What the next pull returns first: empty unless one was interrupted."""

    def read(self, want: int) -> Run:
        out = self._run
        if len(out) > want:
            self._run = out[want:]
            return out[:want]
        try:
            while len(out) < want and (reader := self._reader or self._open_next(len(out))) is not None:
                record = reader.next()
                if record is None:
                    self._close_file()
                else:
                    out.append(record)
                    self._given += 1
        except Exception as failure:  # noqa: BLE001 - records before an error are delivered first
            self._failed.add(self._given)
            self._given += 1
            self._run = []
            return self.fail_after(failure, out)
        self._run = []
        return out

    def read_past(self, reader: FileReader, count: int) -> None:
        for number in range(count):
            try:
                reader.next()
            except Exception:
                if number not in self._failed:
                    raise

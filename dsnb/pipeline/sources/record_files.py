"""The stage of sources that read one file after another, each as a sequence of records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dsnb.pipeline.engine.stage import Run
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.splits import FileSource, SourceStage


class FileReader(Protocol):
    """Reads the records of one file."""

    def next(self) -> Any:
        """Return the next record; None at the end.

        Raises:
            Exception: in place of a record. The next call continues, or returns None if the rest cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class RecordFilesStage(SourceStage):
    """Returns records, with one file open at a time.

    A file that cannot be opened is one error, and reading continues with the next file.

    Args:
        operation: The source.
        context: Supplies the numbers of the files to read.
        open_reader: Opens a file, given its path or URL.
    """

    takes_positions_when_needed = True

    def __init__(self, operation: FileSource, context: BuildContext, open_reader: Callable[[str], FileReader]) -> None:
        super().__init__(operation.name, context, len(operation.files))
        self._files = operation.files
        self._open_reader = open_reader
        self._reader: FileReader | None = None
        self._interrupted: list[Any] = []

    def produce(self, want: int) -> Run:
        out, self._interrupted = self._interrupted, []
        try:
            while len(out) < want and (reader := self._reader or self._open_next(len(out))) is not None:
                record = reader.next()
                if record is None:
                    self._close_file()
                else:
                    out.append(record)
        except Exception as failure:  # noqa: BLE001 - records before an error are delivered first
            return self.fail_after(failure, out)
        except BaseException:
            self._interrupted = out
            raise
        return out

    def _open_next(self, unseen: int) -> FileReader | None:
        self.note_splits_finished(unseen)
        for position in self._splits.take(1):
            self._reader = self._open_reader(self._files[position])
        return self._reader

    def _close_file(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def release(self, unread: int) -> None:
        self._close_file()

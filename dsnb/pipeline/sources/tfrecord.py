"""`TFRecordDataset`: the records of TFRecord files; one split for each file."""

from __future__ import annotations

from typing import Any

from dsnb.elements.spec import BYTES, TensorSpec
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.sources.compressed import BUFFER_BYTES, open_file
from dsnb.pipeline.splits import FileSource, SourceStage
from dsnb.pipeline.tfrecord.reader import RecordReader


class TFRecords(FileSource, frozen=True, kw_only=True):
    """The records of one file after another. If `compression` is None, each file's suffix decides."""

    compression: str | None = None
    buffer_bytes: int = BUFFER_BYTES

    @property
    def name(self) -> str:
        return f"tfrecords({len(self.files)})"

    @property
    def element_spec(self) -> Any:
        return TensorSpec((), BYTES)

    def build(self, context: BuildContext) -> Stage:
        return TFRecordsStage(self, context)


class TFRecordsStage(SourceStage):
    """Returns records, with one file open at a time."""

    def __init__(self, operation: TFRecords, context: BuildContext) -> None:
        super().__init__(operation.name, context, len(operation.files))
        self._operation = operation
        self._opened_files = context.opened_files
        self._reader: RecordReader | None = None
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

    def _open_next(self, unseen: int) -> RecordReader | None:
        operation = self._operation
        self.note_splits_finished(unseen)
        for position in self._splits.take(1):
            path = operation.files[position]
            file = open_file(path, operation.compression, operation.buffer_bytes, self._opened_files)
            self._reader = RecordReader(file, path, operation.buffer_bytes)
        return self._reader

    def _close_file(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def release(self, unread: int) -> None:
        self._close_file()

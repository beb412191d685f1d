"""`TFRecordDataset`: the records of TFRecord files; one split for each file."""

from __future__ import annotations

from typing import Any

from dsnb.elements.spec import BYTES, TensorSpec
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.sources.compressed import BUFFER_BYTES, open_file
from dsnb.pipeline.sources.record_files import RecordFilesStage
from dsnb.pipeline.splits import FileSource
from dsnb.pipeline.tfrecord.reader import RecordReader
from dsnb.storage.urls import shown


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
        def open_reader(path: str) -> RecordReader:
            file = open_file(path, self.compression, self.buffer_bytes, context.opened_files)
            return RecordReader(file, shown(path), self.buffer_bytes)

        return RecordFilesStage(self, context, open_reader)

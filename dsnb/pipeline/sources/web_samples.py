"""`WebDataset`: the samples of tar shards; one split for each shard.

A sample is a run of neighbouring files whose paths are equal up to the first dot of the file's name. As in the library
webdataset: the path up to that dot is the key, the rest, in lower case, names the part; files without a dot, folders
and names in double underscores are left out.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterator
from itertools import product
from typing import IO, Any, Final

from dsnb.errors import DataLossError, DsnbError, InvalidArgumentError
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.sources.compressed import BUFFER_BYTES, open_file
from dsnb.pipeline.sources.record_files import RecordFilesStage
from dsnb.pipeline.splits import FileSource
from dsnb.storage import urls

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_RANGE: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_PARTS: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")
_META: Final = re.compile(r"__[^/]*__($|/)")
_MOST_NAMES: Final = 1_000_000


class WebSamples(FileSource, frozen=True, kw_only=True):
    """The samples of one shard after another."""

    @property
    def name(self) -> str:
        return f"webdataset({len(self.files)})"

    def build(self, context: BuildContext) -> Stage:
        def open_reader(path: str) -> SampleReader:
            packed = "GZIP" if urls.shown(path).endswith((".gz", ".tgz")) else ""
            return SampleReader(open_file(path, packed, BUFFER_BYTES, context.opened_files), urls.shown(path))

        return RecordFilesStage(self, context, open_reader)


class SampleReader:
    """Reads the samples of one shard.

    Args:
        file: The uncompressed shard, at its start; `close` closes it.
        path: Its name, for errors.
    """

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file = file
        self._path = path
        self._samples = self._read()

    def next(self) -> dict[str, Any] | None:
        """Return the next sample; None at the end, and after damage.

        Raises:
            DataLossError: the shard is damaged or cut off.
            UnavailableError: the rest cannot be read from its store.
        """
        return next(self._samples, None)

    def _read(self) -> Iterator[dict[str, Any]]:
        sample: dict[str, Any] = {}
        try:
            for name, data in self._files():
                found = _PARTS.fullmatch(name)
                if found is None or _META.search(name):
                    continue
                key, part = found[1], found[2].lower()
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                if part in sample:
                    raise self._damaged(f"has the file {name} twice in one sample")
                sample.setdefault("__key__", key)
                sample[part] = data
        except (DsnbError, tarfile.TarError, EOFError, zlib.error, OSError) as error:
            if isinstance(error, DsnbError) or getattr(error, "errno", None) is not None:
                raise
            raise self._damaged(f"cannot be read further ({error})") from error
        if sample:
            yield sample

    def _files(self) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents of the files in the shard."""
        with tarfile.open(fileobj=self._file, mode="r|", tarinfo=_CheckedEntry) as shard:
            for entry in shard:
                shard.members = []  # type: ignore[attr-defined]  # otherwise all entries of the shard are kept
                content = shard.extractfile(entry) if entry.isreg() else None
                if content is not None:
                    yield entry.name, content.read()

    def _damaged(self, what: str) -> DataLossError:
        return DataLossError(
            f"the shard {self._path} {what}",
            did="the sample that was under way and the rest of the shard were left out; reading continues with the "
            "next shard",
            hint="write it again",
        )

    def close(self) -> None:
        """Close the shard."""
        self._samples.close()  # type: ignore[attr-defined]  # a generator
        self._file.close()


class _CheckedEntry(tarfile.TarInfo):
    """An entry of a shard. Damage after the first entry, which `tarfile` takes for the end of the archive, raises."""

    @classmethod
    def _read_entry(cls, archive: tarfile.TarFile) -> tarfile.TarInfo:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end mark
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{str(error) or 'it has no end mark'}, at byte {archive.offset:,}") from None

    fromtarfile = _read_entry  # type: ignore[assignment]  # of the class that it is called for


def expand_braces(name: str, pattern: str) -> list[str]:
    """Return what a pattern with `{000..099}` or `{train,test}` stands for, in order.

    Args:
        name: The name of the argument, for errors.
        pattern: The pattern.

    Raises:
        InvalidArgumentError: it stands for more than a million names.

    Example:
        >>> expand_braces("urls", "{a,b}-{08..10}.tar")
        ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    parts = _BRACES.split(pattern)  # text and the insides of braces by turns
    choices = [[part] if number % 2 == 0 else _choices(part) for number, part in enumerate(parts)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST_NAMES:
        raise InvalidArgumentError(
            f"`{name}` stands for {count:,} names", hint=f"pass a pattern of at most {_MOST_NAMES:,}"
        )
    return ["".join(map(str, chosen)) for chosen in product(*choices)]


def _choices(inside: str) -> list[str] | range:
    found = _RANGE.fullmatch(inside)
    if found is None:
        return inside.split(",") if "," in inside else [f"{{{inside}}}"]
    first, last, step = int(found[1]), int(found[2]), abs(int(found[3] or 1)) or 1
    padded = any(re.match(r"-?0\d", text) for text in found.group(1, 2))
    width = max(map(len, found.group(1, 2))) if padded else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if len(numbers) > _MOST_NAMES:
        return numbers  # it is only counted
    return [f"{number:0{width}d}" for number in numbers]

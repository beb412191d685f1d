"""`Dataset.list_files`: the paths that patterns match; one split for each file.

The patterns are looked up once, when the dataset is made, so that all tasks mean the same file by the same number.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dsnb.cache import opened
from dsnb.dataclass import dataclass
from dsnb.elements.spec import STR, TensorSpec
from dsnb.errors import InvalidArgumentError, NotFoundError
from dsnb.pipeline.engine.randomness import FIXED, generator
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.splits import FileSource, Positions

Pattern = str | os.PathLike[str]


def matching(patterns: Pattern | Sequence[Pattern]) -> tuple[str, ...]:
    """The files that the patterns match: absolute, sorted, each once.

    Raises:
        NotFoundError: when there is none.
    """
    texts = paths_of("file_pattern", patterns)
    # Absolute, because a worker may have another working directory.
    found = {path for text in texts for path in _matches(os.path.abspath(text))}
    if not found:
        raise NotFoundError(
            f"no file matches {' or '.join(map(repr, texts)) or 'an empty list of patterns'}",
            hint=f"look from {os.getcwd()}; `**` goes into folders, `*` does not",
        )
    return tuple(sorted(found))


def _matches(pattern: str) -> list[str]:
    found, files = opened.matches(pattern), opened.current()
    if files is not None:
        files.add_pattern(pattern, found)
    return found


def paths_of(name: str, values: Any) -> list[str]:
    """One path or several as a list."""
    if isinstance(values, (str, os.PathLike)):
        return [_path_of(name, values)]
    if isinstance(values, Iterable) and not hasattr(values, "operation"):
        return [_path_of(name, value) for value in values]
    raise InvalidArgumentError(
        f"`{name}` is {type(values).__name__}",
        hint="pass a path or a list of paths; for a dataset of paths, paths.flat_map(dsnb.TextLineDataset)",
    )


def _path_of(name: str, value: Any) -> str:
    """The value as a path or pattern, `~` expanded."""
    if not isinstance(value, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"`{name}` holds {value!r} ({type(value).__name__})", hint='pass a str or a list of them, as in "a/*.png"'
        )
    return os.path.expanduser(os.fspath(value))


@dataclass(frozen=True, kw_only=True, eq=False)
class ListFiles(FileSource):
    """Paths, sorted here; handed out in a new random order for each pass if `shuffle` is set."""

    shuffle: bool = True
    seed: int | None = None

    @property
    def name(self) -> str:
        """With the number of files."""
        return f"list_files({len(self.files)})"

    @property
    def element_spec(self) -> Any:
        """Text."""
        return TensorSpec((), STR)

    @property
    def cardinality(self) -> int:
        """The number of files."""
        return len(self.files)

    @property
    def draws_without_seed(self) -> bool:
        """Unless it has a seed."""
        return self.shuffle and self.seed is None

    def build(self, context: BuildContext) -> Stage:
        """A stage that hands out paths."""
        return ListFilesStage(self, context)


class ListFilesStage(Stage):
    """Paths in the order of this pass."""

    def __init__(self, operation: ListFiles, context: BuildContext) -> None:
        super().__init__(operation.name)
        self._files = _ordered(operation, context)
        self._positions = Positions(context, len(self._files))

    def skip(self, count: int) -> int:
        """Counted."""
        return self._positions.skip(count)

    def produce(self, want: int) -> Run:
        """The next paths."""
        positions = self._positions.take(want)
        return [self._files[position] for position in positions]


def _ordered(operation: ListFiles, context: BuildContext) -> Sequence[str]:
    """The files in the order of this pass.

    Where tasks share the files by split number, all of them must draw the same order, or one file would come twice and
    another never: without a seed they draw from a fixed one, and each pass still has its own order.
    """
    if not operation.shuffle:
        return operation.files
    seed = FIXED if operation.seed is None and context.splits is not None else operation.seed
    order: np.ndarray[Any, Any] = generator(context, seed).permutation(len(operation.files))
    return [operation.files[position] for position in order]

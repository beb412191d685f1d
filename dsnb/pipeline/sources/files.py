"""`Dataset.list_files`: the paths that match patterns; one split for each file.

The patterns are expanded once, when the dataset is made, so that a file has the same number in all tasks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsnb.arguments import each, path, short_repr
from dsnb.cache import opened_files
from dsnb.elements.spec import STR, TensorSpec
from dsnb.errors import InvalidArgumentError, NotFoundError
from dsnb.pipeline.engine.randomness import FIXED_SEED, generator
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.splits import FileSource, SourceStage

Pattern = str | os.PathLike[str]


def matching_files(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    """Return the files that match the patterns, absolute, sorted, each once.

    Raises:
        NotFoundError: no file matches.
    """
    # Absolute, because a worker may have another working directory.
    found = {file for pattern in patterns for file in _matches(os.path.abspath(pattern))}
    if not found:
        raise NotFoundError(
            f"no file matches `file_pattern`: {' or '.join(map(short_repr, patterns)) or 'an empty list of patterns'}",
            hint=f"look from {os.getcwd()}; `**` goes into folders, `*` does not",
        )
    return tuple(sorted(found))


def _matches(pattern: str) -> list[str]:
    found, files = opened_files.glob_files(pattern), opened_files.current_opened_files()
    if files is not None:
        files.add_pattern(pattern, found)
    return found


def paths(name: str, value: Any) -> tuple[str, ...]:
    """Check and return one path or several."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return (path(name, value),)
    if hasattr(value, "operation"):
        raise InvalidArgumentError(
            f"`{name}` is a Dataset",
            hint="pass a path or a list of paths; for a dataset of paths, paths.flat_map(dsnb.TextLineDataset)",
        )
    found: tuple[str, ...] = each(path, 'pass a path or a list of paths, as in "a/*.png"')(name, value)
    return found


class ListFiles(FileSource, frozen=True, kw_only=True):
    """Sorted paths; if `shuffle` is set, each iteration reads them in a new random order."""

    shuffle: bool = True
    seed: int | None = None

    @property
    def name(self) -> str:
        return f"list_files({len(self.files)})"

    @property
    def element_spec(self) -> Any:
        return TensorSpec((), STR)

    @property
    def cardinality(self) -> int:
        return len(self.files)

    @property
    def draws_without_seed(self) -> bool:
        """Whether it shuffles and has no seed."""
        return self.shuffle and self.seed is None

    def build(self, context: BuildContext) -> Stage:
        return ListFilesStage(self, context)


class ListFilesStage(SourceStage):
    """Returns paths in the order of this iteration."""

    one_element_per_split = True

    def __init__(self, operation: ListFiles, context: BuildContext) -> None:
        super().__init__(operation.name, context, len(operation.files))
        self._files = _ordered(operation, context)

    def produce(self, want: int) -> Run:
        positions = self._splits.take(want)
        return [self._files[position] for position in positions]


def _ordered(operation: ListFiles, context: BuildContext) -> Sequence[str]:
    """Return the files in the order of this iteration.

    Tasks that share the files by split number must draw the same order; otherwise one file would be read twice and
    another never. Without a seed they use a fixed one, and each iteration still has its own order.
    """
    if not operation.shuffle:
        return operation.files
    seed = FIXED_SEED if operation.seed is None and context.splits is not None else operation.seed
    order: np.ndarray[Any, Any] = generator(context, seed).permutation(len(operation.files))
    return [operation.files[position] for position in order]

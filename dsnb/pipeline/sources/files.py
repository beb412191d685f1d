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
from dsnb.pipeline.splits import FileSource, SourceStage, SplitProvider
from dsnb.storage import urls

Pattern = str | os.PathLike[str]


def matching_files(patterns: Sequence[Pattern], name: str = "file_pattern") -> tuple[str, ...]:
    """Return the files that match the patterns, absolute, sorted, each once.

    Args:
        patterns: Paths and URLs with `*`, `?`, `[...]` and `**`.
        name: The name of the argument, for errors.

    Raises:
        NotFoundError: no file matches.
    """
    # Absolute, because a worker may have another working directory.
    found = {file for pattern in patterns for file in _matches(urls.absolute(os.fspath(pattern)))}
    if not found:
        raise NotFoundError(
            f"no file matches `{name}`: {' or '.join(map(_shown, patterns)) or 'an empty list of patterns'}",
            hint=f"look from {os.getcwd()}; `**` goes into folders, `*` does not",
        )
    return tuple(sorted(found))


def _shown(pattern: Pattern) -> str:
    return short_repr(urls.shown(pattern) if isinstance(pattern, str) else pattern)


def _matches(pattern: str) -> list[str]:
    found, files = opened_files.glob_files(pattern), opened_files.current_opened_files()
    if files is not None:
        files.add_pattern(pattern, found)
    return found


def files_of(name: str, patterns: Sequence[Pattern], suffix: str = "") -> tuple[str, ...]:
    """Return the files that paths, patterns and folders stand for, in the given order, each once.

    Args:
        name: The name of the argument, for errors.
        patterns: Paths and URLs; those with `*`, `?` or `[` are patterns.
        suffix: How the files in a folder end that are wanted, as in ".parquet"; empty if folders are not expanded.

    Raises:
        NotFoundError: no file matches one of the patterns.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        whole = urls.absolute(os.fspath(pattern))
        if suffix and (whole.endswith("/") if urls.is_url(whole) else os.path.isdir(whole)):
            found.update(dict.fromkeys(matching_files([f"{whole.rstrip('/')}/**/*{suffix}"], name)))
        elif not set(whole) & set("*?[") or os.path.exists(whole):
            found[whole] = None
        else:
            found.update(dict.fromkeys(matching_files([whole], name)))
    if not found:
        raise InvalidArgumentError(f"`{name}` is empty", hint='pass a path or several, as in "data/*"')
    return tuple(found)


def paths(name: str, value: Any) -> tuple[str, ...]:
    """Check and return one path or URL, or several."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return (_path_or_url(name, value),)
    if hasattr(value, "operation"):
        raise InvalidArgumentError(
            f"`{name}` is a Dataset",
            hint="pass a path or a list of paths; for a dataset of paths, paths.flat_map(dsnb.TextLineDataset)",
        )
    found: tuple[str, ...] = each(_path_or_url, 'pass a path or a list of paths, as in "a/*.png"')(name, value)
    return found


def _path_or_url(name: str, value: Any) -> str:
    given: str = path(name, value)
    return urls.check_file_url(name, given) if urls.is_url(given) else given


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

    def split_provider(self) -> SplitProvider:
        return SplitProvider(self.name, len(self.files), divisible=True)

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

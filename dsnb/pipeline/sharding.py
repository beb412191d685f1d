"""Rewrites a worker's pipeline so that it produces one of several shards: takes a tree and returns a tree.

Theory of operation. In the static modes, worker i of n gets the whole pipeline and reduces it to its share before
building it. FILE keeps each n-th file in every source of files. DATA keeps each n-th element; the cut is made as early
as the result allows, so that a final `map` does not run for elements that are dropped. HINT replaces the numbers in the
user's `shard(SHARD_HINT, SHARD_HINT)`. FILE_OR_DATA means FILE if there are files to divide, and DATA otherwise.

Cutting by position requires that all workers see the same order. So the pipeline runs deterministically, whatever its
options say, and the workers of one iteration derive their unseeded randomness from one root (`BuildContext.entropy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from msgspec.structs import replace

from dsnb.code.bytecode import all_reads
from dsnb.code.references import variables
from dsnb.code.usercode import is_user_namespace
from dsnb.errors import InvalidArgumentError, NotFoundError
from dsnb.pipeline.modes import STATIC_MODES, UNKNOWN_FILE_COUNT, ShardingSupport, check_mode, check_worker_count
from dsnb.pipeline.operation import Operation, walk
from dsnb.pipeline.operations.flat_map import FlatMap
from dsnb.pipeline.operations.interleave import Interleave
from dsnb.pipeline.operations.shard import Shard
from dsnb.pipeline.splits import FileSource


def sharding_support(operation: Operation) -> ShardingSupport:
    """Return what a pipeline offers to the static modes."""
    hinted = any(isinstance(step, Shard) and step.is_hint for step in walk(operation))
    try:
        known = [count for count in _file_counts(operation) if count != UNKNOWN_FILE_COUNT]
    except NotFoundError as error:
        return ShardingSupport(no_files_reason=error.what, has_shard_hint=hinted)
    return ShardingSupport(file_count=min(known, default=UNKNOWN_FILE_COUNT), has_shard_hint=hinted)


def sharded(operation: Operation, mode: str, count: int, index: int) -> Operation:
    """Return the part of a pipeline that worker `index` of `count` produces; OFF and DYNAMIC do not change it.

    Raises:
        InvalidArgumentError: there is no such worker, or there are too few files.
        NotFoundError: the mode is FILE, and there are no files.
        FailedPreconditionError: the pipeline has a shard hint, and the mode is not HINT.

    Example:
        >>> from dsnb.pipeline.dataset import Dataset
        >>> [int(x) for x in Dataset(sharded(Dataset.range(10).operation, "DATA", 4, 1))]
        [1, 5, 9]
    """
    if mode not in STATIC_MODES:
        return operation
    support = sharding_support(operation)
    check_mode(mode, support)
    check_worker_count(mode, support, count)
    if not 0 <= index < count:
        raise InvalidArgumentError(
            f"index should be >= 0 and < {count}, currently {index}", hint="workers are counted from 0"
        )
    if support.shards_by_file(mode):
        return _shard_by_file(operation, count, index)
    return (_shard_by_hint if mode == "HINT" else _shard_by_data)(made_deterministic(operation), count, index)


# ---- by data


def _shard_by_data(operation: Operation, count: int, index: int) -> Operation:
    """Keep each n-th element; the cut is placed before operations that change elements one by one."""
    if operation.elementwise:
        (source,) = operation.inputs
        return replace(operation, inputs=(_shard_by_data(source, count, index),))
    return Shard(inputs=(operation,), count=count, index=index)


def _shard_by_hint(operation: Operation, count: int, index: int) -> Operation:
    if isinstance(operation, Shard) and operation.is_hint:
        (source,) = operation.inputs
        return Shard(inputs=(_shard_by_hint(source, count, index),), count=count, index=index)
    return _with_inputs(operation, lambda source: _shard_by_hint(source, count, index))


def made_deterministic(operation: Operation) -> Operation:
    """Return the pipeline with every operation in it deterministic, as shards by data or hint are produced."""
    if "deterministic" in operation.__struct_fields__:
        operation = replace(operation, deterministic=True)
    return _with_inputs(operation, made_deterministic)


def _with_inputs(operation: Operation, change: Callable[[Operation], Operation]) -> Operation:
    return replace(operation, inputs=tuple(map(change, operation.inputs))) if operation.inputs else operation


# ---- by file


def _shard_by_file(operation: Operation, count: int, index: int) -> Operation:
    """Keep each n-th file of every source."""
    if isinstance(operation, FileSource):
        return operation.shard_of_files(count, index)
    if operation.replicated:
        return operation
    if _opens_files(operation) and not _has_files(operation.inputs[0]):
        return replace(operation, inputs=(_shard_file_names(operation.inputs[0], count, index),))
    return _with_inputs(operation, lambda source: _shard_by_file(source, count, index))


def _shard_file_names(operation: Operation, count: int, index: int) -> Operation:
    """Keep each n-th element of every source: they are the names of files that a function opens."""
    if not operation.inputs:
        return Shard(inputs=(operation,), count=count, index=index)
    return _with_inputs(operation, lambda source: _shard_file_names(source, count, index))


def _file_counts(operation: Operation) -> Iterator[int]:
    """Yield the number of files of each source, `UNKNOWN_FILE_COUNT` if only reading would show it.

    Raises:
        NotFoundError: a source reads no files.
    """
    if isinstance(operation, FileSource):
        yield len(operation.files)
    elif operation.replicated:
        return
    elif _opens_files(operation) and not _has_files(operation.inputs[0]):
        for source in walk(operation):
            if not source.inputs:
                yield max(source.cardinality, UNKNOWN_FILE_COUNT)
    elif operation.inputs:
        for source in operation.inputs:
            yield from _file_counts(source)
    else:
        raise NotFoundError(f"Found an unshardable source dataset: {operation.name} reads no files")


def _has_files(operation: Operation) -> bool:
    return any(isinstance(step, FileSource) for step in walk(operation))


def _opens_files(operation: Operation) -> bool:
    """Whether the datasets that an operation's function returns read files, as in `interleave(TextLineDataset)`."""
    return isinstance(operation, FlatMap | Interleave) and opens_files(operation.function)


def opens_files(function: Any) -> bool:
    """Whether a function is or mentions a dataset class that reads files, directly or through other user functions."""
    waiting, seen = [function], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, partial):
            value = value.func
        if isinstance(value, type) and getattr(value, "reads_files", False):
            return True
        if isinstance(value, FunctionType) and value not in seen and is_user_namespace(value.__globals__):
            seen.add(value)
            waiting += _referenced_values(value)
    return False


def _referenced_values(function: FunctionType) -> Iterator[Any]:
    for variable in variables(function):
        yield variable.value
    for first, *names in all_reads(function.__code__):
        value = function.__globals__.get(first)
        while names and isinstance(value, ModuleType):
            value = getattr(value, names.pop(0), None)
        yield value

"""`Dataset.cache`, with its arguments checked at the call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsnb.arguments import checked, integer, nbytes, optional, seconds
from dsnb.cache.locations import parse_location, supports_expiry, without_password
from dsnb.cache.memory import RecordingMemory
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.operations.cache import CHUNK_BYTES, LEASE_S, Cache

if TYPE_CHECKING:
    from dsnb.pipeline.dataset import Dataset


class Caching:
    """What keeps a dataset's elements."""

    operation: Operation

    def _derived(self, operation: Operation) -> Dataset:
        raise NotImplementedError

    @checked(
        where=optional(parse_location),
        filename=optional(parse_location),
        limit_bytes=optional(integer(0)),
        expire_seconds=optional(seconds),
        chunk_bytes=nbytes,
        lease_seconds=seconds,
    )
    def cache(
        self,
        where: str | os.PathLike[str] | None = None,
        *,
        filename: str | os.PathLike[str] | None = None,
        limit_bytes: int | None = None,
        expire_seconds: float | None = None,
        content: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        lease_seconds: float = LEASE_S,
    ) -> Dataset:
        """Record the elements; later passes read them back, and other runs at the same time (as in tf.data, and more).

        With a directory any number of runs share one pass: one writes, the others read what it has written, and go on
        where it stopped. The recording is found by what the pipeline is, down to the code of its functions and to the
        files that it names, so a changed one is recorded anew. A run that stops early leaves what it has; the next one
        goes on from there.

        Args:
            where: A directory; `redis://host:port/db`, for runs on hosts without a shared disk; any other address that
                fsspec knows, which one run at a time should write; None or "" for the memory of this process.
            filename: The same as `where`, which tf.data calls so; it is a directory here, too.
            limit_bytes: Most bytes to keep in memory, or of all recordings in the directory; None for no limit. To stay
                within it, recordings that nobody reads are removed, the longest unused first. What is beyond it is
                produced in each pass.
            expire_seconds: How long what nobody reads is kept in a directory or on a Redis server; None for as long as
                it can be. A directory is looked through when a recording in it is opened.
            content: Tell a changed file by its content, which is read for it, and not by its size and time of change.
            chunk_bytes: How much is written at once, at least once a second.
            lease_seconds: After how long a writer that shows no sign of life is taken over.

        Raises:
            InvalidArgumentError: for anything that cannot be a place; both `where` and `filename`; `expire_seconds` for
                memory, or for an address that removes nothing by itself.
            FailedPreconditionError: for a pipeline that refers to something without a value, such as an open file: a
                change would not be seen. The message names it. Also for a directory of a newer version of dsnb.

        A `shuffle` in front of `cache` is recorded in the order of one pass, and so frozen: shuffle behind it. Where it
        has no seed, a `CacheWarning` says so.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> calls = []
            >>> ds = Dataset.range(3).map(lambda x: calls.append(1) or x * x).cache()
            >>> [int(x) for x in ds], [int(x) for x in ds], len(calls)
            ([0, 1, 4], [0, 1, 4], 3)
        """
        if where is not None and filename is not None:
            raise InvalidArgumentError(
                "`cache` was given both `where` and `filename`",
                hint="pass one: they are two names of the same argument",
            )
        location: Any = where if filename is None else filename
        _check_expiry(location, expire_seconds)
        operation = Cache(
            inputs=(self.operation,),
            where=location,
            memory=RecordingMemory(limit_bytes, keep_between_passes=location is None),
            limit=limit_bytes,
            expire_s=expire_seconds,
            content=content,
            chunk_bytes=chunk_bytes,
            lease_s=lease_seconds,
        )
        operation.check()
        return self._derived(operation)


def _check_expiry(location: str | None, seconds: float | None) -> None:
    if seconds is None:
        return
    if location is None:
        raise InvalidArgumentError(
            "`expire_seconds` was given for a recording in memory, which goes with the dataset",
            hint="leave it out, or give `cache` a directory",
        )
    if not supports_expiry(location):
        raise InvalidArgumentError(
            f"`expire_seconds` was given for {without_password(location)}, where dsnb cannot tell what is being read",
            hint="leave it out and let the store itself expire files, or use a directory or a Redis server",
        )

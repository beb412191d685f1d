"""`Dataset.cache`, with arguments checked at the call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsnb.arguments import checked, integer, nbytes, optional, seconds
from dsnb.cache.recordings.locations import parse_location, supports_expiry, without_password
from dsnb.cache.recordings.memory import RecordingMemory
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.operations.cache import CHUNK_BYTES, LEASE_S, Cache

if TYPE_CHECKING:
    from dsnb.pipeline.dataset import Dataset


class Caching:
    """The method that records a dataset's elements."""

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
        """Record the elements; later epochs and concurrent runs read them back (as in tf.data, and more).

        With a directory, any number of runs share one recording: one of them writes it, the others read what is
        written, and take over if the writer stops. The recording is identified by the pipeline itself, including the
        code of its functions and the files that it names, so a changed pipeline is recorded anew. A run that stops
        early leaves its part, and the next run continues from there.

        A `shuffle` before `cache` is recorded in the order of one epoch and stays that way: shuffle after `cache`
        instead. If it has no seed, a `CacheWarning` says so.

        Args:
            where: A directory; `redis://host:port/db`, for runs on hosts without a shared disk; any other address that
                fsspec supports, to be written by one run at a time; None or "" for the memory of this process.
            filename: tf.data's name of `where`; it is a directory here too.
            limit_bytes: Maximum size in memory, or of all recordings in the directory; None for no limit. To stay
                within it, recordings that are not being read are removed, the least recently used first. Elements
                beyond it are produced in each epoch.
            expire_seconds: How long a recording that is not read is kept in a directory or on a Redis server; None for
                as long as possible. A directory is checked when a recording in it is opened.
            content: Whether to detect changed files by content, which must be read for it, instead of size and
                modification time.
            chunk_bytes: How much is written at once; data is written at least once a second.
            lease_seconds: After this time without a sign of life from the writer, another run takes over.

        Raises:
            InvalidArgumentError: for an invalid location; for both `where` and `filename`; for `expire_seconds` with
                memory, or with a store that removes nothing by itself.
            FailedPreconditionError: the pipeline refers to something that cannot be compared, such as an open file, so
                that changes would go unnoticed; the message names it. Also for a directory of a newer version of dsnb.

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

"""Loads a task's pipeline from the dispatcher: its definition, and its large arrays, as messages or in place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from dsnb.elements.allocation import Allocator
from dsnb.errors import CancelledError, DeadlineExceededError, NotFoundError, UnavailableError, mark_out_of_band
from dsnb.pipeline.engine.resume_point import from_text
from dsnb.pipeline.engine.source_positions import skip_consumed
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.graph import restore
from dsnb.pipeline.operation import BuildContext, SplitFeed
from dsnb.pipeline.operations.with_options import build_pipeline
from dsnb.pipeline.sharding import sharded
from dsnb.pipeline.sources.elements import Elements
from dsnb.transfer import local
from dsnb.wire import blobs
from dsnb.wire.channel import Channel
from dsnb.wire.messages import BlobRequest, DatasetRequest, TaskOrder
from dsnb.wire.methods import GET_BLOB, GET_DATASET

_KEPT_BYTES: Final = 4 << 20


class DefinitionCache:
    """The definitions of recent pipelines, by digest, so that the next iteration need not fetch them again.

    Thread-safe. Keeps at most 4 MiB.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, bytes] = {}

    def get(self, digest: str) -> bytes | None:
        with self._lock:
            return self._kept.get(digest)

    def put(self, definition: bytes) -> None:
        """Add a definition, and drop the oldest ones beyond 4 MiB."""
        with self._lock:
            self._kept[blobs.blob_digest(definition)] = definition
            while sum(map(len, self._kept.values())) > _KEPT_BYTES:
                del self._kept[next(iter(self._kept))]


def stage_builder(
    channel: Channel,
    order: TaskOrder,
    feed: SplitFeed | None,
    retry: RetryPolicy,
    definitions: DefinitionCache,
    *,
    copied_later: bool = False,
) -> Callable[[Allocator], Stage]:
    """Return a function that fetches a task's pipeline and builds its stage; called for the task's first reader.

    Args:
        channel: The connection to the dispatcher.
        order: The task's order.
        feed: Where the pipeline's splits come from, in DYNAMIC mode.
        retry: Repeats calls while the dispatcher is unreachable.
        definitions: The definitions that this worker has already.
        copied_later: Whether elements are copied before a client sees them, so that sources may return views of what
            they keep.
    """

    def define() -> bytes:
        known = definitions.get(order.definition)
        if known is not None:
            return known
        wanted = DatasetRequest(dataset_id=order.dataset_id)
        _, *pieces = retry(lambda: channel.fetch(GET_DATASET, wanted, timeout=ATTEMPT_S))
        definition = b"".join(piece.definition for piece in pieces)
        blobs.check_digest(order.definition, definition, "arrived")
        definitions.put(definition)
        return definition

    def build(allocate: Allocator) -> Stage:
        operation = restore(define(), lambda digest: retry(lambda: fetch(channel, digest)))
        passes, shared = (order.iteration,), order.num_shards > 0
        context = BuildContext(
            entropy=order.entropy,
            iteration_path=passes,
            splits=feed,
            low_latency=True,
            shared_order=shared,
            allocate=allocate,
            copied_later=copied_later,
        )
        if order.position is not None and order.position.ended:
            return Elements(run=()).build(replace(context, splits=None))
        return build_pipeline(sharded(operation, order.mode, order.num_shards, order.shard), context)

    return build


def seek_to_position(order: TaskOrder, stage: Stage) -> None:
    """Move a new stage to the order's position: a saved reading position, or that of an earlier incarnation."""
    if order.position is not None and order.position.pipeline_position and not order.position.ended:
        stage.begin_at(from_text(order.position.pipeline_position))
    elif order.position is not None and order.position.skip and not order.position.ended:
        skip_consumed(stage, order.position.skip, failed=order.position.skipped_errors)


def fetch(channel: Channel, digest: str) -> Any:
    """The bytes of a blob, read-only; not a copy if the dispatcher is in this process."""
    in_place = local.find_blobs(channel.address)
    if in_place is not None:
        return memoryview(in_place(digest)).toreadonly()
    _, data = blobs.join_pieces(channel.replies(GET_BLOB, BlobRequest(digest=digest)))
    return memoryview(data).toreadonly()  # read-only, so its rows can be passed on without a copy


T = TypeVar("T")

ATTEMPT_S = 2.0
"""Timeout of one attempt, which bounds how long a task that is stopped keeps its thread waiting for an answer."""

_PAUSE_S = 0.05


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats a call while the dispatcher does not answer.

    Args:
        seconds: How long the connection may be broken before the call fails.
        given_up: Returns whether the answer is no longer needed.
        connected: Returns whether the control stream is connected. The answer is then only late, and the deadline does
            not run: a notebook cell may hold the GIL of the dispatcher's process for a minute. If the dispatcher is
            gone or stopped for good, the connection breaks.

    Example:
        >>> retry = RetryPolicy(seconds=60.0, given_up=lambda: task.stopped, connected=lambda: session.connected)
        >>> retry(lambda: channel.call(GET_SPLITS, request, timeout=ATTEMPT_S))
    """

    seconds: float
    given_up: Callable[[], bool]
    connected: Callable[[], bool]

    def __call__(self, call: Callable[[], T]) -> T:
        """Make the call, repeatedly if necessary, and return its answer.

        Args:
            call: The call; raises UnavailableError if the dispatcher does not answer.

        Raises:
            DeadlineExceededError: the dispatcher was unreachable for `seconds`.
            CancelledError: the task was stopped, or the dispatcher does not know it.
        """
        deadline = time.monotonic() + self.seconds
        while True:
            try:
                return call()
            except NotFoundError as error:
                raise mark_out_of_band(CancelledError(error.what)) from error
            except UnavailableError as error:
                if self.given_up():
                    raise mark_out_of_band(CancelledError("the task was stopped")) from error
                if self.connected():
                    deadline = time.monotonic() + self.seconds
                if time.monotonic() > deadline:
                    raise mark_out_of_band(
                        DeadlineExceededError(
                            f"{error.what} for {self.seconds:g} seconds",
                            did="what was asked is asked again when this task is read on",
                            hint="start the dispatcher again where it was (its work_dir and port), or stop reading",
                        )
                    ) from error
                time.sleep(_PAUSE_S)

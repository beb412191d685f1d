"""Loads a task's pipeline from the dispatcher: its definition, and its large arrays, as messages or in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dsnb.cache.opened_files import OpenedFiles, track_in_this_thread
from dsnb.code.library_names import installed_version
from dsnb.elements.allocation import Allocator
from dsnb.pipeline.engine.resume_point import from_text
from dsnb.pipeline.engine.source_positions import skip_consumed
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.graph import restore
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.operations.with_options import build_pipeline
from dsnb.pipeline.sharding import sharded
from dsnb.pipeline.sources.elements import Elements
from dsnb.pipeline.split_order import UNIT_BYTES, UNIT_S, UnitStage, wants_split_order
from dsnb.pipeline.splits import split_providers
from dsnb.processes import usable_cpus
from dsnb.transfer import local
from dsnb.wire import blobs
from dsnb.wire.channel import Channel
from dsnb.wire.messages import BlobRequest, DatasetRequest, TaskOrder
from dsnb.wire.methods import GET_BLOB, GET_DATASET
from dsnb.worker.retry_policy import ATTEMPT_S, RetryPolicy
from dsnb.worker.splits import DispatcherFeed

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
    feed: DispatcherFeed | None,
    retry: RetryPolicy,
    definitions: DefinitionCache,
    *,
    copied_later: bool = False,
    opened_files: OpenedFiles | None = None,
    cpus: Callable[[], float] = usable_cpus,
    notice: Callable[[str], None] = lambda _text: None,
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
        opened_files: Records the files that are opened; None if they need not be recorded.
        cpus: Returns how many processors the pipeline may keep busy.
        notice: Called with a warning for the events of the service.
    """

    def define() -> bytes:
        known = definitions.get(order.definition)
        if known is not None:
            return known
        wanted = DatasetRequest(dataset_id=order.dataset_id)
        first, *pieces = retry(lambda: channel.fetch(GET_DATASET, wanted, timeout=ATTEMPT_S))
        differing = differing_libraries(first.info.libraries if first.info is not None else ())
        if differing:
            notice(f"has other versions of what job {order.job_name!r} uses: {differing}")
        definition = b"".join(piece.definition for piece in pieces)
        blobs.check_digest(order.definition, definition, "arrived")
        definitions.put(definition)
        return definition

    def build(allocate: Allocator) -> Stage:
        operation = restore(define(), lambda digest: retry(lambda: fetch(channel, digest)))
        sizes = tuple(provider.size for provider in split_providers(operation)) if feed is not None else ()
        passes, shared = (order.iteration,), order.num_shards > 0
        context = BuildContext(
            entropy=order.entropy,
            iteration_path=passes,
            splits=feed,
            split_sizes=sizes,
            low_latency=True,
            shared_order=shared,
            allocate=allocate,
            copied_later=copied_later,
            opened_files=opened_files,
            cpus=cpus,
        )
        if opened_files is not None:
            track_in_this_thread(opened_files)  # the producer's, in which user code may read datasets
        if order.position is not None and order.position.ended:
            return Elements(run=()).build(replace(context, splits=None))
        if feed is not None and wants_split_order(operation):
            feed.limit_runs(UNIT_S, UNIT_BYTES)
            return UnitStage(operation, context)
        return build_pipeline(sharded(operation, order.mode, order.num_shards, order.shard), context)

    return build


def differing_libraries(libraries: Sequence[str]) -> str:
    """Which installed packages of this process have another version than where the pipeline was registered.

    Args:
        libraries: The packages there, as in "numpy==2.3.5".

    Returns:
        A list for people, as in "numpy 2.2.1 instead of 2.3.5"; empty if there is no difference. A package that is
        missing here is not listed: the pipeline's own error says so.
    """
    found = []
    for library in libraries:
        name, _, version = library.partition("==")
        here = installed_version(name)
        if here and here != version:
            found.append(f"{name} {here} instead of {version}")
    return ", ".join(found)


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
    _, data = blobs.join_pieces(channel.transfer(GET_BLOB, BlobRequest(digest=digest)))
    return memoryview(data).toreadonly()  # read-only, so its rows can be passed on without a copy

"""How a task's pipeline comes to its worker: the definition from the dispatcher, big arrays in pieces or in place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from dsnb.elements.room import Room
from dsnb.pipeline.engine.bookmarks import leave_out
from dsnb.pipeline.engine.resume_point import from_text
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.graph import restore
from dsnb.pipeline.operation import BuildContext, SplitFeed
from dsnb.pipeline.operations.with_options import built
from dsnb.pipeline.sharding import sharded
from dsnb.pipeline.sources.elements import Elements
from dsnb.wire import blobs
from dsnb.wire.channel import Channel
from dsnb.wire.messages import BlobRequest, DatasetRequest, TaskOrder
from dsnb.wire.methods import GET_BLOB, GET_DATASET
from dsnb.wire.transfer import local
from dsnb.worker.patience import ATTEMPT_S, Patience

_KEPT_BYTES: Final = 4 << 20


class Definitions:
    """The pipelines that this worker ran last, by their digests: the next pass over one need not ask for it again.

    Thread-safe. It keeps no more than a few megabytes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, bytes] = {}

    def get(self, digest: str) -> bytes | None:
        with self._lock:
            return self._kept.get(digest)

    def put(self, definition: bytes) -> None:
        """Keep one, instead of older ones where there is no room."""
        with self._lock:
            self._kept[blobs.digest_of(definition)] = definition
            while sum(map(len, self._kept.values())) > _KEPT_BYTES:
                del self._kept[next(iter(self._kept))]


def builder(
    channel: Channel,
    order: TaskOrder,
    feed: SplitFeed | None,
    patience: Patience,
    definitions: Definitions,
    *,
    copied_later: bool = False,
) -> Callable[[Room], Stage]:
    """What makes a task's stage, when its first reader comes."""

    def define() -> bytes:
        known = definitions.get(order.definition)
        if known is not None:
            return known
        wanted = DatasetRequest(dataset_id=order.dataset_id)
        _, *pieces = patience(lambda: channel.fetch(GET_DATASET, wanted, timeout=ATTEMPT_S))
        definition = b"".join(piece.definition for piece in pieces)
        blobs.check(order.definition, definition, "arrived")
        definitions.put(definition)
        return definition

    def build(room: Room) -> Stage:
        operation = restore(define(), lambda digest: patience(lambda: fetch(channel, digest)))
        passes, shared = (order.iteration,), order.shards > 0
        context = BuildContext(
            entropy=order.entropy,
            passes=passes,
            splits=feed,
            prompt=True,
            shared=shared,
            room=room,
            copied_later=copied_later,
        )
        if order.position is not None and order.position.ended:
            return Elements(run=()).build(replace(context, splits=None))
        return built(sharded(operation, order.mode, order.shards, order.shard), context)

    return build


def begin_at(order: TaskOrder, stage: Stage) -> None:
    """Leave out what readers of an earlier pass, or of an earlier incarnation of the task, had."""
    if order.position is not None and order.position.resume and not order.position.ended:
        stage.begin_at(from_text(order.position.resume))
    elif order.position is not None and order.position.skip and not order.position.ended:
        leave_out(stage, order.position.skip, failed=order.position.failed)


def fetch(channel: Channel, digest: str) -> Any:
    """A blob's bytes: the dispatcher's own where it lives in this process."""
    in_place = local.find_blobs(channel.address)
    if in_place is not None:
        return memoryview(in_place(digest)).toreadonly()
    _, data = blobs.received(channel.replies(GET_BLOB, BlobRequest(digest=digest)))
    return memoryview(data).toreadonly()  # so that its rows need no protection from writers

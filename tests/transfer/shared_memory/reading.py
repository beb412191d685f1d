"""A worker's door to shared memory that lets a test deliver, and readers of it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsnb.transfer.admission import Admission
from dsnb.transfer.shared_memory import client_connection
from dsnb.transfer.shared_memory.client import SharedMemoryEndpoint
from dsnb.transfer.shared_memory.pool import Pool
from dsnb.transfer.shared_memory.server import SharedMemoryServer
from dsnb.wire.messages import ReadRequest
from dsnb.wire.poller import Poller
from dsnb.wire.security import Guard
from tests.support.waiting import wait_for
from tests.transfer.test_grpc import Reader, Worker
from tests.wire.serving import TOKEN

MIB = 1 << 20
SIZE = 8 * MIB
BIG = MIB
"""Bytes of an element that goes through a slab."""

_uids = itertools.count()


class Door:
    """A worker that can be read on this host."""

    def __init__(self, size: int = SIZE, limit: int = 10) -> None:
        self.worker = Worker()
        self.uid = f"test-{os.getpid()}-{next(_uids)}"
        self.service = SharedMemoryServer(self.worker, Guard(TOKEN, self.uid), size, Admission(limit))
        self.service.start(self.uid)

    @property
    def pool(self) -> Pool:
        assert self.service.pool is not None
        return self.service.pool

    def used(self, nbytes: int, why: str = "") -> None:
        """Wait until slabs take so many bytes."""
        wait_for(lambda: self.pool.used_bytes == nbytes, what=f"{nbytes} bytes to be used {why}")


@contextmanager
def door(**settings: Any) -> Iterator[Door]:
    made = Door(**settings)
    try:
        yield made
    finally:
        made.service.stop()


class SharedReader(Reader):
    """A sink that keeps what it gets, with the reading that fills it."""

    def __init__(self, uid: str, token: str = TOKEN, **opening: Any) -> None:
        self.pieces = []
        self.notices = []
        self.errors = []
        fields = {"task_id": "t", "client_id": "c", "trainer_id": "", "max_bytes": 1 << 20, **opening}
        self.reading: Any = SharedMemoryEndpoint(uid, token).open(ReadRequest(**fields), self)

    def progress(self, whole: int, base: int) -> None:
        self.notices.append(("progress", whole, base))

    def take(self) -> Any:
        """The only element of the next piece; nothing here holds on to it."""
        wait_for(lambda: self.pieces, what="a piece")
        (element,) = self.pieces.pop(0).elements()
        return element


class ListeningReader(SharedReader):
    """A reader that has no thread: it hears what has come when it looks."""

    def __init__(self, uid: str, **opening: Any) -> None:
        self._ears = Poller()
        super().__init__(uid, **opening)

    @property
    def poller(self) -> Poller:
        return self._ears

    def look(self) -> bool:
        """Hear what has come; whether there is a piece now."""
        self.poller.dispatch()
        return bool(self.pieces)

    def take(self) -> Any:
        wait_for(self.look, what="a piece")
        return super().take()

    def close(self) -> None:
        self.reading.leave(0)
        self.reading.wait_until_left(2.0)
        self.pieces.clear()
        self.poller.close()


@contextmanager
def reading(there: Door, **settings: Any) -> Iterator[SharedReader]:
    reader = SharedReader(there.uid, **settings)
    try:
        yield reader
    finally:
        reader.reading.leave(0)
        reader.reading.wait_until_left(2.0)
        reader.pieces.clear()


def data(seed: int, nbytes: int = BIG) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def lines() -> int:
    """Sockets to workers that this process has open."""
    return len(client_connection.connections)

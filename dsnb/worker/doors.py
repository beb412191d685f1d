"""The ways in for readers of other processes: gRPC from anywhere and, on one host, shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ, Method
from dsnb.wire.security import Guard
from dsnb.wire.transfer.admission import Admission
from dsnb.wire.transfer.grpc import ReadService
from dsnb.wire.transfer.protocol import Endpoint
from dsnb.wire.transfer.shared_memory.server import SharedMemoryServer
from dsnb.worker.config import WorkerConfig


class TransferServers:
    """Lets readers in by all ways together as many as the worker is set to.

    Args:
        endpoint: The worker.
        config: Its settings.
        guard: Decides which readers are let in.
    """

    def __init__(self, endpoint: Endpoint, config: WorkerConfig, guard: Guard) -> None:
        self.admission = Admission(config.max_readers)
        self._grpc = ReadService(endpoint, self.admission)
        self._shared_memory = SharedMemoryServer(endpoint, guard, config.shared_memory_size, self.admission)

    @property
    def handlers(self) -> dict[Method[Any, Any], Callable[[Iterator[ReadRequest], grpc.ServicerContext], Any]]:
        """The calls that its gRPC server answers."""
        return {READ: self._grpc.read}

    def open(self, worker_uid: str) -> None:
        """Let readers of this host find it."""
        self._shared_memory.start(worker_uid)

    def close(self) -> None:
        """Let nobody in any more, and send off who is there."""
        self._shared_memory.stop()
        self._grpc.stop()

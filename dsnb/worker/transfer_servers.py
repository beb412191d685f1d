"""The servers for readers in other processes: gRPC, and shared memory for readers on the same host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from dsnb.transfer.admission import Admission
from dsnb.transfer.grpc import ReadService
from dsnb.transfer.protocol import Endpoint
from dsnb.transfer.shared_memory.server import SharedMemoryServer
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ, Method
from dsnb.wire.security import Guard
from dsnb.worker.config import WorkerConfig


class TransferServers:
    """The worker's transfer servers, with one limit (`max_readers`) on their concurrent readers.

    Args:
        endpoint: The worker.
        config: Its settings.
        guard: Authenticates readers.
    """

    def __init__(self, endpoint: Endpoint, config: WorkerConfig, guard: Guard) -> None:
        self.admission = Admission(config.max_readers)
        self._grpc = ReadService(endpoint, self.admission)
        self._shared_memory = SharedMemoryServer(endpoint, guard, config.shared_memory_size, self.admission)

    @property
    def handlers(self) -> dict[Method[Any, Any], Callable[[Iterator[ReadRequest], grpc.ServicerContext], Any]]:
        """The handlers that the worker's gRPC server must register."""
        return {READ: self._grpc.read}

    def open(self, worker_uid: str) -> None:
        """Start the shared memory server, which readers on this host find by the worker's uid."""
        self._shared_memory.start(worker_uid)

    def close(self) -> None:
        """Stop all transfer servers; present readings are ended."""
        self._shared_memory.stop()
        self._grpc.stop()

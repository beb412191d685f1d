"""`WorkerActor`: the class that a Ray actor runs. The node needs dsnb and its dependencies, as the notebook does."""

from __future__ import annotations

import os
from typing import Any

from dsnb.code.imports import keep_received_modules
from dsnb.errors import DsnbError
from dsnb.worker.config import WorkerConfig
from dsnb.worker.host import keep_freed_memory, set_switch_interval
from dsnb.worker.server import WorkerServer


class WorkerActor:
    """One worker in a process of Ray. Ray calls its methods on several threads."""

    def __init__(self) -> None:
        self._server: WorkerServer | None = None

    def start(self, settings: dict[str, Any]) -> dict[str, str]:
        """Start the worker; returns its uid, name, address and process id, or the parts of the error."""
        keep_freed_memory()
        set_switch_interval()
        keep_received_modules()
        try:
            server = self._server = WorkerServer(WorkerConfig(**settings))
        except DsnbError as error:
            return {"failed": type(error).__name__, "what": error.what, "did": error.did, "hint": error.hint}
        return {"uid": server.uid, "name": server.name, "address": server.address, "pid": str(os.getpid())}

    def serve(self) -> str:
        """Wait until the worker has ended; returns the reason if its dispatcher refused it."""
        if self._server is not None:
            try:
                self._server.join()
            except DsnbError as error:
                return error.what
        return ""

    def drain(self) -> None:
        """Accept no new work, and stop once everything is delivered."""
        if self._server is not None:
            self._server.drain()

    def idle(self) -> bool:
        """Whether everything is delivered."""
        return self._server is None or self._server.idle

    def stop(self) -> None:
        """Stop the worker; other workers continue what it had."""
        if self._server is not None:
            self._server.stop()

"""How one reader gets a task's elements, as a worker reports it and the status shows it."""

from __future__ import annotations

import msgspec


class LinkReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one client gets one task's elements.

    Attributes:
        task_id: The task; empty in a worker's report, where it is the task that the report is of.
        worker: The task's worker, likewise.
        client_id: The client.
        trainer_id: The trainer for which it reads.
        transfer: "local" (by reference), "shared_memory" or "grpc".
        reason: Why this transfer was chosen.
        frame_slices: Frame slices that were transferred.
        fallbacks: Frame slices that were large enough for shared memory but found no room there, so that they were sent
            over its socket instead: slower, and in the client's own memory.
        held_bytes: Shared memory that the client holds now: elements not consumed yet, and views that it keeps.
        fallback_reason: Why there was no room at the last fallback.
        sent: Elements that were sent to the client in all.
        at_end: Whether that is everything that the client can get, as far as the worker knows.
    """

    task_id: str = ""
    worker: str = ""
    client_id: str = ""
    trainer_id: str = ""
    transfer: str = ""
    reason: str = ""
    frame_slices: int = 0
    fallbacks: int = 0
    held_bytes: int = 0
    fallback_reason: str = ""
    sent: int = 0
    at_end: bool = False

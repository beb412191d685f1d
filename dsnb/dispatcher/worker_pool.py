"""The interface between a dispatcher and the object in the same process that starts and stops its workers."""

from __future__ import annotations

from typing import Protocol


class WorkerPool(Protocol):
    """Starts and stops workers. The dispatcher calls it before it sends a worker the order to drain or leave."""

    @property
    def launcher_name(self) -> str:
        """What starts the workers, in words that follow "started by"."""
        ...

    def stderr_of(self, uid: str) -> tuple[str, ...]:
        """The last lines that the worker with this uid wrote to its standard error."""
        ...

    @property
    def size(self) -> int:
        """The number of workers, without those that are leaving."""
        ...

    def capacity(self) -> int | None:
        """How many more workers could be placed on other machines; None if that is unknown or they share this one."""
        ...

    def scale(self, count: int) -> str:
        """Start or stop workers until there are `count`; returns why that is not so yet, or an empty text."""
        ...

    def release_worker(self, uid: str, *, at_once: bool) -> None:
        """Remove a worker. It first finishes its tasks, unless `at_once`. Unknown uids are ignored."""
        ...

    def stop(self) -> None:
        """Stop all workers. A second call does nothing."""
        ...

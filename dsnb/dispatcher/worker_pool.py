"""Whoever started workers beside a dispatcher in one process, as the dispatcher sees it."""

from __future__ import annotations

from typing import Protocol


class WorkerPool(Protocol):
    """Starts and stops workers; it learns of what the dispatcher is asked to do with them before they do."""

    def stderr_of(self, uid: str) -> tuple[str, ...]:
        """The last lines that a worker of that uid wrote to its standard error."""
        ...

    def scale(self, count: int) -> None:
        """Start or stop workers until there are `count`."""
        ...

    def release_worker(self, uid: str, *, at_once: bool) -> None:
        """Do without a worker, which is to finish what it has unless it goes `at_once`; one of others is not known."""
        ...

"""`Launcher`: starts workers somewhere; `LaunchedWorker`: one such worker, as the process that owns it sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from dsnb.dispatcher.worker_pool import WorkerPool
from dsnb.worker.config import WorkerConfig

if TYPE_CHECKING:
    from dsnb.dispatcher.server import DispatchServer  # `start` begins worker processes before it imports the server


class LaunchedWorker(Protocol):
    """A worker that a launcher started. Thread-safe.

    Attributes:
        uid: The worker's unique id; empty until it is ready.
        name: Its name in the service, such as "w0"; empty until it is ready.
    """

    uid: str
    name: str

    @property
    def placed(self) -> bool:
        """Whether the worker has the resources that it needs; if not, it waits for them."""
        ...

    @property
    def idle(self) -> bool:
        """Whether a drained worker has delivered what it held, or the worker has ended."""
        ...

    @property
    def stderr(self) -> tuple[str, ...]:
        """The last lines of its standard error; empty if they are not collected."""
        ...

    def wait_ready(self, timeout: float) -> None:
        """Wait until the worker serves readers, or until it is certain that it must wait for resources.

        Raises:
            DeadlineExceededError: it is not ready in time.
            DsnbError: the reason why it could not start.
        """
        ...

    def drain(self) -> None:
        """Ask the worker to accept no new work. Does not wait."""
        ...

    def ask_to_stop(self) -> None:
        """Ask the worker to stop. Does not wait."""
        ...

    def stop(self, timeout: float) -> None:
        """Stop the worker; end it by force after `timeout` seconds. A second call does nothing."""
        ...

    def exit_reason(self) -> str:
        """Why the worker ended, in words that follow "worker w0 was lost: "."""
        ...


OnExit = Callable[[LaunchedWorker], None]
"""Called once if a worker ends that was not asked to, also if it could not start; its uid is then empty."""


class Launcher(ABC):
    """Starts workers somewhere; the base class of `dsnb.launchers.Ray`, `Dask` and `Command`.

    Attributes:
        name: What it is called in the status, in words that follow "started by".
        isolation: "thread" if the workers run in this process, else "process".
        stop_timeout_s: How long workers may take to stop before they are ended by force, in seconds.
    """

    name: ClassVar[str] = "a launcher"
    isolation = "process"
    stop_timeout_s = 5.0

    def check(self, host: str) -> None:  # noqa: B027 - only some launchers have something to check
        """Find out whether workers can be started, before anything else is started.

        Args:
            host: The host on which the service is going to listen.

        Raises:
            FailedPreconditionError: the engine is not installed or not connected.
        """

    def default_count(self) -> int:
        """The number of workers if the user gives none."""
        return 2

    def prestart(self, count: int) -> None:  # noqa: B027 - only some launchers can prepare anything
        """Prepare the start of `count` workers while this process does something else."""

    @abstractmethod
    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        """Start a worker without waiting until it serves; see `LaunchedWorker.wait_ready`."""

    def capacity(self) -> int | None:
        """How many more workers could be placed now; None if the launcher does not know."""
        return None

    def unplaced_text(self, waiting: Sequence[LaunchedWorker], count: int) -> str:
        """Say with numbers why some of `count` workers could not be placed."""
        return f"{len(waiting)} of {count} workers wait for resources"

    def close(self) -> None:  # noqa: B027 - only some launchers prepare anything
        """End what the launcher has prepared and not used."""

    def pool(self, dispatcher: DispatchServer, config: WorkerConfig) -> WorkerPool:
        """The pool that starts the workers of one service with this launcher."""
        from dsnb.launchers.pool import LaunchedPool

        return LaunchedPool(self, dispatcher, config)

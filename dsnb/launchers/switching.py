"""`SwitchToProcesses`: replaces the thread workers of a service by processes once the GIL is what limits a job.

Threads start at once and hand elements over by reference, so they are the better beginning, and stay the better choice
for pipelines that wait or that release the GIL. For the others the verdict says "interpreter", and its remedy is to run
the workers in processes of their own. This module does what the verdict says.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from dsnb.errors import DsnbError
from dsnb.launchers.local import Processes
from dsnb.monitor.formatting import plural
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, latest_verdicts
from dsnb.worker.config import WorkerConfig

if TYPE_CHECKING:
    from dsnb.dispatcher.server import DispatchServer
    from dsnb.launchers.pool import LaunchedPool

INTERVAL_S = 0.25
_SNAPSHOTS = 9
"""A verdict is about the last two seconds: enough for a verdict, and few enough to forget how a job began."""
_VERDICTS = 2
"""How many verdicts in a row must agree. One cell of the user's that holds the GIL for a moment is no reason."""
_CAUSE = "interpreter"


class GilWatch:
    """Decides by a series of snapshots whether the GIL limits a job. Pure.

    Example:
        >>> GilWatch().limited_job(Snapshot()) is None
        True
    """

    def __init__(self) -> None:
        self._snapshots: deque[Snapshot] = deque(maxlen=_SNAPSHOTS)
        self._in_a_row = 0

    @property
    def suspects(self) -> bool:
        """Whether the last verdict blamed the GIL."""
        return self._in_a_row > 0

    def limited_job(self, snapshot: Snapshot) -> Verdict | None:
        """The verdict on a job that the GIL limits, once enough of them agree; else None."""
        self._snapshots.append(snapshot)
        found = next((verdict for verdict in latest_verdicts(self._snapshots) if verdict.cause == _CAUSE), None)
        self._in_a_row = self._in_a_row + 1 if found is not None else 0
        return found if self._in_a_row >= _VERDICTS else None


class SwitchToProcesses:
    """A thread that watches a service and replaces its thread workers at most once.

    Args:
        dispatcher: The service; what is done becomes an event.
        pool: Its workers.
        config: The settings of the worker processes.
    """

    def __init__(self, dispatcher: DispatchServer, pool: LaunchedPool, config: WorkerConfig) -> None:
        self._dispatcher = dispatcher
        self._pool = pool
        self._config = config
        self._processes = Processes()
        self._prestarted = False
        self._watch = GilWatch()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="dsnb-isolation", daemon=True).start()

    def stop(self) -> None:
        """Replace nothing from now on; a replacement under way is undone by the pool. Does not wait."""
        self._stopped.set()

    def _run(self) -> None:
        switched = False
        try:
            while not switched and not self._stopped.wait(INTERVAL_S):
                switched = self._check()
        except DsnbError as error:  # no worker process can be started: threads still work
            self._dispatcher.announce(f"the workers stay threads: {error.what}", "warning")
        finally:
            self._processes.close()  # ends those that were prestarted and not used

    def _check(self) -> bool:
        """Look at the service once; returns whether its workers were replaced."""
        if self._dispatcher.idle:
            return False
        verdict = self._watch.limited_job(self._dispatcher.status())
        self._prestart()
        if verdict is None:
            return False
        count = self._pool.switch(self._processes, self._config)
        if count:
            text = f"{plural(count, 'worker')} moved from threads to processes of their own"
            self._dispatcher.announce(f"{text}, because the GIL limited job {verdict.job!r}", "info")
        return True

    def _prestart(self) -> None:
        """Start processes at the first suspicion, since both take about a second; end them if it was wrong."""
        if self._watch.suspects and not self._prestarted:
            self._processes.prestart(self._pool.size)
        elif not self._watch.suspects and self._prestarted:
            self._processes.close()
        self._prestarted = self._watch.suspects

"""`DataService`: a service as a cell touches it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from dsnb.arguments import anything, checked, function_of, integer, number, optional, path, text
from dsnb.errors import DeadlineExceededError, DsnbError, FailedPreconditionError, InvalidArgumentError
from dsnb.monitor.controls import Controls, describe_caller
from dsnb.monitor.run_file import RunWriter
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.watch import fetch_snapshot
from dsnb.notebook import display
from dsnb.notebook.cluster import Cluster
from dsnb.notebook.explaining import Explanation, explain_over
from dsnb.notebook.reporting import recent_snapshots, write_report
from dsnb.notebook.settings import ClusterSettings, worker_count
from dsnb.notebook.uninterruptible import run_uninterruptible as uninterrupted
from dsnb.notebook.widget import ServiceCard
from dsnb.wire import discovery, forks
from dsnb.wire.addresses import target
from dsnb.wire.addresses import token as token_rule
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import ForgetRequest
from dsnb.wire.methods import FORGET
from dsnb.wire.stopped_services import refuse_stopped

_TIMEOUT = number("pass a number of seconds, 0 or more, at most 1e9", least=0.0, most=1e9)
_EXPLAIN_SECONDS = number("pass a number of seconds, 1 or more, at most 3,600", above=0.0, most=3600.0)
_INTERVAL = number("pass a number of seconds above 0, at most 86,400", above=0.0, most=86_400.0)
_HEIGHT = integer(1, 100_000, "pass a number of pixels, 1 to 100,000")


class DataService:
    """A data service: one that this process started, or one that it is connected to.

    Made by `dsnb.start` and `dsnb.connect`; usable wherever a `service` is asked for. May be used from any thread.

    Attributes:
        name: The service's name.
        target: Where it listens, as in "grpc://127.0.0.1:5050".
        token: What callers must know; keep it to yourself. Empty where none was given or found: then it is looked up by
            the address whenever a connection is made.
        owned: Whether this process started it; only then `stop` stops it.
    """

    @checked(
        name=text,
        target=target,
        token=optional(token_rule),
        cluster=anything,
        dashboard=anything,
        card=anything,
        writers=anything,
    )
    def __init__(
        self,
        name: str,
        target: str,
        token: str | None,
        cluster: Cluster | None = None,
        dashboard: display.LazyDashboard | None = None,
        card: ServiceCard | None = None,
        writers: list[RunWriter] | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.token = token or ""
        self._token = token or None
        self._cluster = cluster
        self._borrowed = dashboard is not None
        self._dashboard = dashboard or display.LazyDashboard(target, token)
        self._writers = writers if writers is not None else []
        self._card = card or ServiceCard(name, target, self._dashboard.feed, self.scale, self._dashboard.url)

    @property
    def owned(self) -> bool:
        """Whether this process started the service, and `stop` stops it."""
        return self._cluster is not None

    @property
    def settings(self) -> ClusterSettings:
        """What it was started with; the defaults for a service of another process."""
        return self._cluster.settings if self._cluster is not None else ClusterSettings()

    @property
    def workers(self) -> int:
        """The number of workers that it has now."""
        if self._cluster is not None:
            return len(self._cluster.workers)
        return len(self.status().workers)

    @checked()
    def status(self) -> Snapshot:
        """What the service looks like now: workers, jobs, trainers, splits, with counters that only grow.

        Raises:
            UnavailableError: it does not answer.
        """
        self._check_running()
        return fetch_snapshot(self.target, self._token)

    @checked(condition=function_of("a Snapshot"), timeout=_TIMEOUT)
    def wait_until(self, condition: Callable[[Snapshot], bool], timeout: float = 30.0) -> Snapshot:
        """Wait until a condition on the status holds, and return that status.

        Args:
            condition: What to wait for.
            timeout: Seconds to wait at the most.

        Raises:
            DeadlineExceededError: it did not come to hold in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            snapshot = self.status()
            if condition(snapshot):
                return snapshot
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"the condition did not hold within {timeout:g} seconds", hint="svc.status() shows what is there"
                )
            time.sleep(0.05)

    @checked(seconds=_EXPLAIN_SECONDS)
    def explain(self, seconds: float = 2.0) -> Explanation:
        """What limits the jobs that are read now, in sentences with numbers and remedies; the worst first.

        Args:
            seconds: For how long to watch, 1 or more.

        Returns:
            A tuple of `Verdict`, which reads as text in a cell.

        Raises:
            UnavailableError: the service does not answer.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=1) as svc:
            ...     print(svc.explain(1.0))
            No job was read long enough to say anything of it.
        """
        return explain_over(self.status, max(1.0, seconds))

    @checked(path=path, every=_INTERVAL)
    def record(self, path: str | os.PathLike[str], every: float = 1.0) -> RunWriter:
        """Keep what the dashboard shows in a file, until the service or what this returns is stopped.

        Args:
            path: Of the file, an SQLite database; it can be read while it is written, by `dsnb.monitor.run_file`.
            every: Seconds between two snapshots; the file holds some thousands, the older ones ever further apart.

        Returns:
            The writer, with `stop()`; usable with `with`.

        Raises:
            FailedPreconditionError: the file cannot be written, or is something else.

        Example:
            >>> import dsnb, tempfile
            >>> with tempfile.TemporaryDirectory() as folder, dsnb.start(workers=1) as svc:
            ...     with svc.record(f"{folder}/run.db") as writer:
            ...         pass
            ...     writer.path.endswith("run.db")
            True
        """
        self._check_running()
        writer = RunWriter(path, self.target, self._token, every_s=max(0.1, every))
        self._writers.append(writer)
        return writer

    @checked(path=path)
    def report(self, path: str | os.PathLike[str]) -> str:
        """Write one self-contained page about the run: verdicts, throughput, trainers, splits, workers, events.

        Of all that `record` kept, if it was called; else of the next two seconds.

        Args:
            path: Of the page, as in "run.html"; it needs no network.

        Returns:
            The path of what was written.

        Raises:
            FailedPreconditionError: it cannot be written.
            UnavailableError: the service does not answer.
        """
        recorded_path = self._writers[-1].path if self._writers else None
        return write_report(path, recent_snapshots(recorded_path, self.status))

    @checked(workers=worker_count)
    def scale(self, workers: int) -> None:
        """Have this many workers. New ones join the jobs that run; DYNAMIC jobs lose nothing when one goes.

        Args:
            workers: 0 or more. A worker that goes finishes the splits it has, for as long as its readers take: this
                call waits for that for 5 seconds, the rest happens in the background. Its pass of an OFF job ends
                early, which its readers are told.

        Raises:
            FailedPreconditionError: the service does not start its workers itself.
        """
        self._check_running()
        if self._cluster is None:
            self._controls("scale").scale(workers)
            return
        cluster = self._cluster
        uninterrupted(lambda: cluster.scale(workers))

    @checked(job_name=optional(text), dataset_id=optional(text))
    def forget(self, job_name: str | None = None, *, dataset_id: str | None = None) -> None:
        """Drop a job that nobody reads, or a dataset and its jobs, so that the name is free.

        Args:
            job_name: A job's; its passes begin at 0 again.
            dataset_id: A dataset's; `register_dataset` may give the id another pipeline then.

        Raises:
            InvalidArgumentError: neither or both were given.
            NotFoundError: there is no such job or dataset.
            FailedPreconditionError: somebody reads it.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=1) as svc:
            ...     for length in (3, 5):  # a cell that is edited and run again
            ...         if length == 5:
            ...             svc.forget(dataset_id="numbers")
            ...         dsnb.register_dataset(svc, dsnb.Dataset.range(length), dataset_id="numbers")
            ...     len(list(dsnb.from_dataset_id("parallel_epochs", svc, "numbers")))
            'numbers'
            'numbers'
            5
        """
        if (job_name is None) == (dataset_id is None):
            raise InvalidArgumentError(
                "`forget` needs a job_name or a dataset_id, and not both",
                did="nothing was changed",
                hint='svc.forget("train") or svc.forget(dataset_id="images")',
            )
        self._check_running()
        channel = open_channel(self.target, self._token)
        try:
            channel.call(FORGET, ForgetRequest(job_name=job_name or "", dataset_id=dataset_id or ""))
        finally:
            channel.close()

    @checked(job_name=text, trainer_id=text)
    def evict(self, job_name: str, trainer_id: str) -> None:
        """Keep nothing for a trainer of the cross-trainer cache any longer, and let nobody wait for it.

        If it reads on, it goes on with what is there, and what it missed is counted.

        Raises:
            NotFoundError: there is no such job, or it has no such trainer.
        """
        self._controls("evict").evict(job_name, trainer_id)

    @checked(job_name=text)
    def pause(self, job_name: str) -> None:
        """Hand out nothing more of a job after what is in flight; its readers wait, without a deadline, for `resume`.

        Nothing is lost by it. The status says "paused", and who begins to read the job is warned.

        Raises:
            NotFoundError: there is no such job.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=1) as svc:
            ...     data = dsnb.Dataset.range(9)
            ...     elements = iter(data.apply(dsnb.distribute("parallel_epochs", svc, job_name="a"))).start()
            ...     svc.pause("a")
            ...     state = svc.status().job("a").state
            ...     svc.resume("a")
            ...     state, len(list(elements))
            ('paused', 9)
        """
        self._controls("pause").pause(job_name)

    @checked(job_name=text)
    def resume(self, job_name: str) -> None:
        """Go on with a job that was paused.

        Raises:
            NotFoundError: there is no such job.
        """
        self._controls("resume").resume(job_name)

    @checked(job_name=text)
    def cancel(self, job_name: str) -> None:
        """End a job: each of its readers gets a `CancelledError` that says who cancelled it, and its name is free.

        Raises:
            NotFoundError: there is no such job.
        """
        self._controls("cancel").cancel(job_name)

    @checked(worker=text)
    def drain(self, worker: str) -> None:
        """Have a worker finish what it has and leave; DYNAMIC jobs lose nothing by it.

        Args:
            worker: Its name, as in "w0", or its address.

        Raises:
            NotFoundError: there is no such worker.
        """
        self._controls("drain").drain(worker)

    @checked(worker=text)
    def remove(self, worker: str) -> None:
        """Do without a worker at once; what it had in hand is lost, counted and told to readers.

        Args:
            worker: Its name, as in "w0", or its address.

        Raises:
            NotFoundError: there is no such worker.
        """
        self._controls("remove").remove(worker)

    def _controls(self, action: str) -> Controls:
        self._check_running()
        return Controls(self.target, self._token, requested_by=describe_caller(f"svc.{action}()"))

    @checked(height=_HEIGHT)
    def dashboard(self, height: int = 760) -> Any:
        """Show the dashboard: in a notebook as a frame in the page, elsewhere as its address.

        The page is served by a thread of this process and stays live while cells run.

        Args:
            height: Of the frame, in pixels.
        """
        return display.dashboard_frame(self.dashboard_url(), height)

    @checked()
    def dashboard_url(self) -> str:
        """The dashboard's address; begins to serve it."""
        self._check_running()
        return self._dashboard.url()

    @checked()
    def stop(self) -> None:
        """Stop the service and everything of it; of a service of another process, only what was opened here.

        The second call does nothing, nor does one in a process that was forked from the service's.
        """
        if not forks.in_forked_child():
            uninterrupted(self._stop)

    def _stop(self) -> None:
        for writer in self._writers:
            writer.stop()
        self._card.stop()
        self._dashboard.stop()
        if self._cluster is not None:
            self._cluster.stop()

    @checked()
    def borrowed(self) -> DataService:
        """The same service for somebody who did not start it: leaving its `with` block does not stop it."""
        return DataService(
            self.name, self.target, self._token, self._cluster, self._dashboard, self._card, self._writers
        )

    @property
    def stopped(self) -> bool:
        """Whether the service was stopped here."""
        return self._cluster is not None and self._cluster.stopped

    def _check_running(self) -> None:
        forks.check_grpc()
        if self.stopped:
            raise FailedPreconditionError(f"the service {self.name!r} was stopped", hint="start it again: dsnb.start()")
        refuse_stopped(self.target)

    def __enter__(self) -> DataService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._borrowed:
            self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        # The token stays here: where the object is unpickled, it is found by the address.
        return (_reconnect, (self.name, self.target))

    def __repr__(self) -> str:
        # Nothing that changes from run to run, so that a notebook's output can be compared.
        workers = f"{self.workers} worker{'' if self.workers == 1 else 's'}" if self.owned else "connected"
        state = "stopped" if self.stopped else workers
        return f"DataService({self.name!r}, {state})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        # A front end takes the richest kind that it knows: the live card in Jupyter, the HTML on a page without it.
        shown = {} if self.stopped else self._card.mime_bundle()
        return {**shown, "text/plain": repr(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        head = display.service_title(self.name, self.target)
        if self.stopped:
            return f"{head}: stopped"
        try:
            return head + display.tables(self.status())
        except DsnbError as error:
            return head + display.unreachable_html(error.what)


def _reconnect(name: str, target: str) -> DataService:
    return DataService(name, target, discovery.token_for(target) or None)

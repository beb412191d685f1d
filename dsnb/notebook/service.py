"""`DataService`: the handle that a notebook cell uses to control a service."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dsnb.arguments import anything, boolean, checked, function_of, integer, number, optional, path, text
from dsnb.errors import DeadlineExceededError, DsnbError, FailedPreconditionError, InvalidArgumentError
from dsnb.monitor.controls import Controls, describe_caller
from dsnb.monitor.formatting import format_time, plural
from dsnb.monitor.metrics_feed import MetricsFeed
from dsnb.monitor.receipt import Receipt
from dsnb.monitor.run_file import RunWriter
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.status_html import status_tables
from dsnb.monitor.watch import fetch_receipt, fetch_snapshot
from dsnb.notebook import display
from dsnb.notebook.cluster import Cluster
from dsnb.notebook.explaining import Explanation, explain_over
from dsnb.notebook.joining import join_command
from dsnb.notebook.reporting import recent_snapshots, recorded_snapshots, write_report
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

if TYPE_CHECKING:
    from dsnb.notebook.detached import DetachedCluster

_TIMEOUT = number("pass a number of seconds, 0 or more, at most 1e9", least=0.0, most=1e9)
_EXPLAIN_SECONDS = number("pass a number of seconds, 1 or more, at most 3,600", above=0.0, most=3600.0)
_INTERVAL = number("pass a number of seconds above 0, at most 86,400", above=0.0, most=86_400.0)
_EPOCH = integer(1, hint="pass the number of an epoch, from 1; None is the newest")
_HEIGHT = integer(1, 100_000, "pass a number of pixels, 1 to 100,000")


class DataService:
    """A data service that this process started, or one that it is connected to.

    Returned by `dsnb.start` and `dsnb.connect`. Accepted wherever a `service` argument is. May be used from any thread.

    Attributes:
        name: The service's name.
        target: The address that it listens on, as in "grpc://127.0.0.1:5050".
        token: The secret that callers must send; keep it private. Empty if none was given or found: each connection
            then looks it up by address.
        owned: Whether this process controls the service, because it started it, or called `start` again for one that
            outlives its kernel; only then does `stop` stop it.
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
        cluster: Cluster | DetachedCluster | None = None,
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
        self._metrics = MetricsFeed(self.status)
        self._card = card or ServiceCard(name, target, self._dashboard.feed, self.scale, self._dashboard.url)

    @property
    def owned(self) -> bool:
        """Whether this process controls the service, so that `stop` stops it."""
        return self._cluster is not None

    @property
    def settings(self) -> ClusterSettings:
        """The settings that the service was started with; the defaults if another process started it."""
        return self._cluster.settings if self._cluster is not None else ClusterSettings()

    @property
    def workers(self) -> int:
        """The current number of workers."""
        if self._cluster is not None:
            return self._cluster.size
        return len(self.status().workers)

    @checked()
    def status(self) -> Snapshot:
        """Return a snapshot of the service: workers, jobs, trainers and splits, with counters that never decrease.

        Raises:
            UnavailableError: the service does not answer.
        """
        self._check_running()
        return fetch_snapshot(self.target, self._token)

    @checked(condition=function_of("a Snapshot"), timeout=_TIMEOUT)
    def wait_until(self, condition: Callable[[Snapshot], bool], timeout: float = 30.0) -> Snapshot:
        """Wait until a condition on the status holds, and return that status.

        Args:
            condition: Called with each snapshot; returns whether to stop waiting.
            timeout: The maximum wait, in seconds.

        Raises:
            DeadlineExceededError: the condition did not hold within `timeout`.
        """
        deadline = time.monotonic() + timeout
        while True:
            snapshot = self.status()
            if condition(snapshot):
                return snapshot
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"the condition did not hold within {timeout:g} seconds",
                    hint="svc.status() shows the present state",
                )
            time.sleep(0.05)

    @checked(seconds=_EXPLAIN_SECONDS)
    def explain(self, seconds: float = 2.0) -> Explanation:
        """Explain what limits the jobs that are being read: sentences with numbers and remedies, the worst first.

        If nothing is being read any more, it says what limited the last jobs, as the report does.

        Args:
            seconds: How long to observe the service; values below 1 count as 1.

        Returns:
            A tuple of `Verdict` that prints as text in a cell.

        Raises:
            UnavailableError: the service does not answer.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=1) as svc:
            ...     print(svc.explain(1.0))
            Not enough data yet: no job was read for long enough to judge it.
        """
        return explain_over(self.status, max(1.0, seconds), self._history)

    def _history(self) -> list[Snapshot]:
        """What was recorded of the run, or else what the dashboard and the card have seen of it; the oldest first."""
        if self._writers:
            return recorded_snapshots(self._writers[-1].path)
        return [sample.snapshot for sample in self._dashboard.feed.since(float("-inf"))]

    @checked(job_name=text, epoch=optional(_EPOCH))
    def receipt(self, job_name: str, epoch: int | None = None) -> Receipt:
        """Return what was delivered of one epoch of a job: of how many elements, what is missing, what came twice.

        Two counts that are made independently prove it: the numbers of the elements that were consumed, and each
        reader's own count. A number that is not known, as after a reader was killed, is -1, and `notes` says why.
        Receipts are kept as long as the job, of its newest 1,000 epochs, and survive a restart of the dispatcher. The
        last 100 jobs that were cancelled or anonymous leave that of their newest epoch.

        If its readers set `Options(receipts=True)`, the receipt has a digest of the contents too. It is the same for
        epochs and runs that delivered the same elements, in whatever order and with any number of readers and workers.

        Args:
            job_name: The job.
            epoch: The epoch, as the status shows it: 1 is the first. None for the newest.

        Raises:
            NotFoundError: there is no such job or epoch.
            UnavailableError: the service does not answer.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=2) as svc:
            ...     data = dsnb.Dataset.range(1000).apply(dsnb.distribute("distributed_epoch", svc, job_name="train"))
            ...     count = len(list(data))
            ...     svc.receipt("train")
            epoch 1 of job 'train': 1,000 of 1,000 elements, each once
            >>> with dsnb.start(workers=1) as svc:
            ...     data = dsnb.Dataset.range(1000).apply(dsnb.distribute("distributed_epoch", svc, job_name="train"))
            ...     count = len(list(data.with_options(dsnb.Options(receipts=True))))
            ...     svc.receipt("train").digest
            'dd1ea9590ee79c26a697d6e4c4f82542'
        """
        self._check_running()
        return fetch_receipt(self.target, self._token, job_name, epoch or 0)

    @checked(path=path, every=_INTERVAL)
    def record(self, path: str | os.PathLike[str], every: float = 1.0) -> RunWriter:
        """Save what the dashboard shows to a file, until the service or the returned writer is stopped.

        Args:
            path: The file, an SQLite database. `dsnb.monitor.run_file` can read it while it is being written.
            every: Seconds between two snapshots, at least 0.1. The file keeps some thousands; in the older half of a
                long run they are further apart.

        Returns:
            The writer, with `stop()`; also a context manager.

        Raises:
            FailedPreconditionError: the file cannot be written, or it exists and holds something else.

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
        """Write a self-contained HTML report of the run: verdicts, throughput, trainers, splits, workers, events.

        The report covers everything that `record` has saved; if `record` was not called, the next two seconds.

        Args:
            path: The HTML file to write, as in "run.html". Viewing it needs no network.

        Returns:
            The absolute path of the report.

        Raises:
            FailedPreconditionError: the file cannot be written.
            UnavailableError: the service does not answer.
        """
        recorded_path = self._writers[-1].path if self._writers else None
        return write_report(path, recent_snapshots(recorded_path, self.status))

    @checked()
    def metrics(self) -> str:
        """Return the numbers of `status()` as text in the format of Prometheus, for a monitoring system.

        Counters end in `_total`; they do not decrease from one call of this object to the next. The metric
        `dsnb_verdict` compares calls that are at least five seconds apart, so it is missing in the first text.

        Raises:
            UnavailableError: the service does not answer.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=2, name="digits") as svc:
            ...     text = svc.metrics()
            >>> [line for line in text.splitlines() if line.startswith("dsnb_workers{")]
            ['dsnb_workers{service="digits",state="running"} 2', 'dsnb_workers{service="digits",state="draining"} 0']
        """
        return self._metrics.text()

    @checked(workers=worker_count)
    def scale(self, workers: int) -> None:
        """Start or stop workers until there are `workers`. New workers join running jobs; DYNAMIC jobs lose no data.

        Args:
            workers: 0 or more. A leaving worker finishes its splits first, however long its clients take to read
                them: this call waits at most 5 seconds, the rest happens in the background. In a job with sharding
                policy OFF its pass over the data ends early, and its clients are warned.

        Raises:
            FailedPreconditionError: the service does not start its workers itself.
        """
        self._check_running()
        if self._cluster is None:
            self._controls("scale").scale(workers)
            return
        cluster = self._cluster
        if notice := uninterrupted(lambda: cluster.scale(workers)):
            print(f"dsnb: {notice}")

    @checked(minimum=optional(worker_count), maximum=worker_count)
    def autoscale(self, minimum: int | None = 1, maximum: int = 32) -> None:
        """Choose the number of workers automatically from now on, by what the jobs need.

        Every two seconds the service compares how much its readers could consume with what one worker makes. It adds
        workers in one step if readers wait and workers help, removes them one by one if they are not needed, and does
        nothing where something else limits a job. Each decision is an event; `status().autoscale` has the last one.

        Args:
            minimum: The least number of workers; None switches autoscaling off.
            maximum: The greatest number of workers.

        Raises:
            InvalidArgumentError: `maximum` is less than `minimum`.
            FailedPreconditionError: the service does not start its workers itself.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=1) as svc:
            ...     svc.autoscale(minimum=1, maximum=4)
            ...     limits = svc.status().autoscale
            ...     svc.autoscale(None)
            ...     limits.minimum, limits.maximum, svc.status().autoscale
            (1, 4, None)
        """
        if minimum is not None and maximum < max(1, minimum):
            raise InvalidArgumentError(
                f"`maximum` is {maximum}, and `minimum` is {minimum}",
                did="nothing was changed",
                hint="pass a maximum of at least 1 that is not less than the minimum, as in svc.autoscale(1, 32)",
            )
        self._controls("autoscale").autoscale(minimum or 0, 0 if minimum is None else maximum)

    @checked(job_name=optional(text), dataset_id=optional(text))
    def forget(self, job_name: str | None = None, *, dataset_id: str | None = None) -> None:
        """Delete a job that has no clients, or a dataset with its jobs, so that the name can be used again.

        Args:
            job_name: The job to delete; a new job of that name starts at epoch 0.
            dataset_id: The dataset to delete; `register_dataset` may then register another pipeline under the id.

        Raises:
            InvalidArgumentError: neither or both arguments were given.
            NotFoundError: there is no such job or dataset.
            FailedPreconditionError: the job or dataset still has clients.

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
        """Stop keeping elements for a trainer of the cross-trainer cache, and stop other trainers waiting for it.

        If the trainer reads again, it continues with what the window still holds; the elements it missed are counted.

        Raises:
            NotFoundError: there is no such job, or the job has no such trainer.
        """
        self._controls("evict").evict(job_name, trainer_id)

    @checked(job_name=text)
    def pause(self, job_name: str) -> None:
        """Pause a job: elements in flight are still delivered, then its clients wait for `resume` without a deadline.

        No data is lost. The status shows "paused", and a client that starts to read the job gets a warning.

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
        """Continue a paused job.

        Raises:
            NotFoundError: there is no such job.
        """
        self._controls("resume").resume(job_name)

    @checked(job_name=text)
    def cancel(self, job_name: str) -> None:
        """End a job: each of its clients gets a `CancelledError` that names who cancelled it; the name becomes free.

        Raises:
            NotFoundError: there is no such job.
        """
        self._controls("cancel").cancel(job_name)

    @checked(worker=text)
    def drain(self, worker: str) -> None:
        """Have a worker finish its splits and leave. DYNAMIC jobs lose no data.

        Args:
            worker: The worker's name, as in "w0", or its address.

        Raises:
            NotFoundError: there is no such worker.
        """
        self._controls("drain").drain(worker)

    @checked(worker=text)
    def remove(self, worker: str) -> None:
        """Remove a worker immediately. Other workers continue its tasks.

        Elements that they cannot produce again are lost: they are counted, and clients are warned.

        Args:
            worker: The worker's name, as in "w0", or its address.

        Raises:
            NotFoundError: there is no such worker.
        """
        self._controls("remove").remove(worker)

    @checked(inline=boolean)
    def join_command(self, inline: bool = False) -> str:
        """Return the command that starts a worker of this service on another machine.

        Args:
            inline: False: the command names a join file, which this call writes (mode 0600) and which has to be copied
                to that machine first, to the same path or another; a printed line says so. True: the command contains
                everything, to be pasted into a shell there.

        Returns:
            The command. Whoever has the join file, or the inline command, may run code on the service's workers.

        Raises:
            FailedPreconditionError: the service listens on loopback, where other machines cannot reach it.
            UnavailableError: the service does not answer.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=1, host="auto", tls=False) as svc:
            ...     svc.join_command(inline=True).splitlines()[0]
            "dsnb worker --join - <<'END'"
        """
        self._check_running()
        return join_command(self.name, self.target, self._token, inline=inline)

    def _controls(self, action: str) -> Controls:
        self._check_running()
        return Controls(self.target, self._token, requested_by=describe_caller(f"svc.{action}()"))

    @checked(height=_HEIGHT)
    def dashboard(self, height: int = 760) -> Any:
        """Show the dashboard: inline in a notebook, elsewhere as an address.

        A thread of this process serves the page, so it stays live while cells run.

        Args:
            height: The height of the inline frame, in pixels.
        """
        return display.dashboard_frame(self.dashboard_url(), height)

    @checked()
    def dashboard_url(self) -> str:
        """Start to serve the dashboard if needed, and return its address."""
        self._check_running()
        return self._dashboard.url()

    @checked()
    def stop(self) -> None:
        """Stop the service; if another process started it, only close what this object opened.

        A second call does nothing, and neither does a call in a process forked from the service's.
        """
        if not forks.in_forked_child():
            uninterrupted(self._stop)

    def _stop(self) -> None:
        for writer in self._writers:
            writer.stop()
        self._card.stop()
        what = "The service was stopped" if self._cluster is not None else "This dashboard was closed"
        self._dashboard.stop(f"{what} at {format_time(time.time())}.")
        if self._cluster is not None:
            self._cluster.stop()

    @checked()
    def borrowed(self) -> DataService:
        """Return a handle on the same service whose `with` block does not stop it, for code that did not start it."""
        return DataService(
            self.name, self.target, self._token, self._cluster, self._dashboard, self._card, self._writers
        )

    @property
    def stopped(self) -> bool:
        """Whether the service has ended, if this process controls it; False for one that it only reads from."""
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
        # Leave the token out of the pickle: the process that unpickles it finds the token by address.
        return (_reconnect, (self.name, self.target))

    def __repr__(self) -> str:
        # Include nothing that changes between runs, so that notebook outputs can be compared.
        if self.stopped:
            return f"DataService({self.name!r}, stopped)"
        return f"DataService({self.name!r}, {plural(self.workers, 'worker') if self.owned else 'connected'})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        # A front end renders the richest type that it knows: the live card in Jupyter, the HTML without widgets.
        shown = {} if self.stopped else self._card.mime_bundle()
        return {**shown, "text/plain": repr(self), "text/html": self._repr_html_()}

    def _mime_(self) -> tuple[str, str]:
        # marimo's display protocol; marimo has no ipywidgets, so it shows the state of the moment.
        if self.stopped:
            return "text/html", self._repr_html_()
        try:
            return "text/html", self._card.static_html(self.status())
        except DsnbError:
            return "text/html", self._repr_html_()

    def _repr_html_(self) -> str:
        head = display.service_title(self.name, self.target)
        if self.stopped:
            return f"{head}: stopped"
        try:
            return head + status_tables(self.status())
        except DsnbError as error:
            return head + display.unreachable_html(error.what)


def _reconnect(name: str, target: str) -> DataService:
    return DataService(name, target, discovery.token_for(target) or None)

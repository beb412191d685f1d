"""How a service is displayed in a cell: HTML without styles or scripts, and the frame that embeds the dashboard."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from dsnb.dashboard.feed import Feed
from dsnb.dashboard.source import INTERVAL_S
from dsnb.errors import DsnbError
from dsnb.monitor.formatting import LEVEL_SIGNS, plural
from dsnb.monitor.snapshot import JobStatus, Snapshot
from dsnb.monitor.tables import html_table, trainer_table, worker_table
from dsnb.monitor.verdict import Verdict
from dsnb.monitor.watch import watch_snapshots

if TYPE_CHECKING:
    from dsnb.dashboard.server import DashboardServer

_MAX_JOBS = 8
_WORKER_COLUMNS = ("worker", "state", "isolation", "tasks", "produced", "cache_bytes")
_TRAINER_COLUMNS = ("trainer", "elements", "wait", "lag", "hits", "misses", "skipped", "lost")


def service_title(name: str, target: str) -> str:
    """The service's name and address, as HTML."""
    return f"<b>dsnb</b> service <code>{escape(name)}</code> at <code>{escape(target)}</code>"


def summary(snapshot: Snapshot) -> str:
    """One line about the state of the service: workers, jobs, skipped elements, lost splits."""
    read = [job for job in snapshot.jobs if job.state == "running"]
    parts = [plural(len(snapshot.workers), "worker"), f"{len(read)} of {snapshot.job_count:,} jobs running"]
    skipped = sum(trainer.skipped for job in snapshot.jobs for trainer in job.trainers)
    lost = sum(job.lost_splits for job in snapshot.jobs)
    parts += [f"<b>{skipped:,} elements skipped</b>"] if skipped else []
    parts += [f"<b>{lost:,} splits lost</b>"] if lost else []
    return " · ".join(parts)


def tables(snapshot: Snapshot) -> str:
    """The current workers and the newest jobs, as HTML tables."""
    return _workers(snapshot) + "".join(map(_job, snapshot.jobs[-1 : -_MAX_JOBS - 1 : -1])) + _older(snapshot)


def verdicts_html(found: Iterable[Verdict]) -> str:
    """Each verdict with its remedy, as HTML paragraphs."""
    return "".join(f"<p>{LEVEL_SIGNS[one.level]} <b>{escape(one.text)}</b> {escape(one.remedy)}</p>" for one in found)


def unreachable_html(reason: str) -> str:
    """HTML for a service that does not answer."""
    return f": <b>not reachable</b><br><code>{escape(reason)}</code>"


def error_html(error: DsnbError) -> str:
    """An error and its hint in one line of HTML."""
    return escape(" – ".join(part for part in (error.what, error.hint) if part))


def dashboard_links(url: str) -> str:
    """Links to the dashboard: its address, and the one through Jupyter if that differs."""
    browser_url = _browser_url(url)
    first = f'<a href="{escape(browser_url, quote=True)}" target="_blank">open the dashboard</a>'
    if browser_url != url:
        return f'{first} (<a href="{escape(url, quote=True)}" target="_blank">on the kernel\'s machine</a>)'
    # Only the browser knows whether Jupyter itself is reached through another machine, so offer both links.
    port, _, path = url.rpartition(":")[2].partition("/")
    through = escape(f"/proxy/{port}/{path}", quote=True)
    return f'{first} (<a href="{through}" target="_blank">through Jupyter</a>)'


def _older(snapshot: Snapshot) -> str:
    more = snapshot.job_count - min(len(snapshot.jobs), _MAX_JOBS)
    return f"<p>and {more:,} older jobs: <code>svc.status().jobs</code></p>" if more > 0 else ""


def _workers(snapshot: Snapshot) -> str:
    if not snapshot.workers:
        return "<p>No workers: <code>svc.scale(2)</code> starts two.</p>"
    return html_table(worker_table(snapshot.workers, _WORKER_COLUMNS))


def _job(job: JobStatus) -> str:
    sharing = ", shared through the cross-trainer cache" if job.cached else ""
    title = (
        f"<p><b>job {escape(job.name)}</b> ({job.mode}{sharing}): {job.state}, "
        f"{job.produced:,} elements produced, {job.consumed:,} consumed<br><code>{escape(job.pipeline)}</code></p>"
    )
    return title + (html_table(trainer_table(job, _TRAINER_COLUMNS), bars=True) if job.trainers else "")


class LazyDashboard:
    """The dashboard of one service; its server starts at the first call of `url`.

    Attributes:
        feed: The snapshots that the dashboard's pages and the card show; follows the service once one of them is shown.
    """

    def __init__(self, target: str, token: str | None) -> None:
        self._address = target, token
        self.feed = Feed(lambda stop: watch_snapshots(target, token, INTERVAL_S, stop))
        self._server: DashboardServer | None = None
        self._lock = threading.RLock()

    def url(self) -> str:
        """Start to serve the dashboard if needed, and return its address."""
        from dsnb.dashboard.server import start_in_thread  # panel takes a second to import, and few calls need it

        with self._lock:
            if self._server is None:
                self._server = start_in_thread(self.feed, look_up_address=lambda: self._address)
            return self._server.url

    def stop(self) -> None:
        """Stop the server and the feed; a second call does nothing."""
        self.feed.stop()
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.stop()


class DashboardFrame:
    """Displays the dashboard: an inline frame in a notebook."""

    def __init__(self, url: str, height: int) -> None:
        self.url = url
        self.height = height

    def __repr__(self) -> str:
        return "Dashboard(live in the page)"

    def _repr_html_(self) -> str:
        url = escape(self.url, quote=True)
        return (
            f'<p>dsnb dashboard: <a href="{url}" target="_blank">{url}</a></p>'
            f'<iframe src="{url}" width="100%" height="{self.height}" style="border:0"></iframe>'
        )


def dashboard_frame(url: str, height: int) -> Any:
    """The inline frame for a dashboard served at `url`; `DSNB_DASHBOARD_URL` or JupyterHub's proxy may change it."""
    return DashboardFrame(_browser_url(url), height)


def _browser_url(url: str) -> str:
    template, prefix = os.environ.get("DSNB_DASHBOARD_URL"), os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    port, _, path = url.rpartition(":")[2].partition("/")
    if template:
        return template.format(port=port, **os.environ)
    if prefix:
        return f"{prefix.rstrip('/')}/proxy/{port}/{path}"
    return url

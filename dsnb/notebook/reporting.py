"""The HTML report of a run, from a recorded file or from a few seconds of sampling."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from dsnb.errors import FailedPreconditionError
from dsnb.monitor.comparison_report import RecordedRun, render_comparison
from dsnb.monitor.html_report import render_html_report
from dsnb.monitor.run_file import RunReader
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import latest_verdicts
from dsnb.system_limits import describe_os_error

_SAMPLING_S = 2.0
_SAMPLES = 8


def write_report(path: str | os.PathLike[str], snapshots: Sequence[Snapshot]) -> str:
    """Write the HTML report of a run and return its absolute path.

    Args:
        path: The HTML file to write.
        snapshots: Snapshots of the run, the oldest first; at least one.

    Raises:
        FailedPreconditionError: the file cannot be written.
    """
    return _write_page(path, render_html_report(snapshots, latest_verdicts(snapshots)))


def write_comparison(path: str | os.PathLike[str], first: str, second: str) -> str:
    """Write a page that compares two recorded runs, and return its absolute path.

    Args:
        path: The HTML file to write.
        first: The file of one run.
        second: The file of the other run.

    Raises:
        FailedPreconditionError: the page cannot be written, or a file is not a recorded run or has no snapshots yet.
        NotFoundError: there is no such file.
    """
    same = os.path.basename(first) == os.path.basename(second)
    runs = (
        RecordedRun(name=file if same else os.path.basename(file), snapshots=read_recorded_run(file))
        for file in (first, second)
    )
    return _write_page(path, render_comparison(*runs))


def _write_page(path: str | os.PathLike[str], text: str) -> str:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise FailedPreconditionError(
            f"the report cannot be written to {os.fspath(path)} ({describe_os_error(error)})",
            did="nothing was written",
            hint="name a file in a folder that you may write to",
        ) from error
    return os.path.abspath(path)


def read_recorded_run(path: str) -> list[Snapshot]:
    """Return all snapshots of a recorded run, the oldest first.

    Raises:
        FailedPreconditionError: the file is not a recorded run, or has no snapshots yet.
        NotFoundError: there is no such file.
    """
    snapshots = recorded_snapshots(path)
    if not snapshots:
        raise FailedPreconditionError(
            f"{path} has no snapshots yet",
            did="no report was written",
            hint="a snapshot is written each second; try again",
        )
    return snapshots


def recent_snapshots(path: str | None, status: Callable[[], Snapshot]) -> list[Snapshot]:
    """Return the recorded snapshots and the current one; with fewer than two recorded, sample for two seconds."""
    before = recorded_snapshots(path) if path is not None else []
    return [*before, status()] if len(before) > 1 else [*before, *_sample(status)]


def recorded_snapshots(path: str) -> list[Snapshot]:
    """All snapshots that a recorded run has so far, the oldest first; perhaps none."""
    with RunReader(path) as reader:
        return list(reader.between(0.0, time.time()))


def _sample(status: Callable[[], Snapshot]) -> list[Snapshot]:
    snapshots = [status()]
    for _ in range(_SAMPLES):
        time.sleep(_SAMPLING_S / _SAMPLES)
        snapshots.append(status())
    return snapshots

"""The HTML report of a run, from a recorded file or from a few seconds of sampling."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from dsnb.errors import FailedPreconditionError
from dsnb.monitor.html_report import render_html_report
from dsnb.monitor.run_file import RunReader
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, verdicts
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
    text = render_html_report(snapshots, _last_verdicts(snapshots))
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
    snapshots = _read_snapshots(path)
    if not snapshots:
        raise FailedPreconditionError(
            f"{path} has no snapshots yet",
            did="no report was written",
            hint="a snapshot is written each second; try again",
        )
    return snapshots


def recent_snapshots(path: str | None, status: Callable[[], Snapshot]) -> list[Snapshot]:
    """Return the recorded snapshots and the current one; with fewer than two recorded, sample for two seconds."""
    before = _read_snapshots(path) if path is not None else []
    return [*before, status()] if len(before) > 1 else [*before, *_sample(status)]


def _read_snapshots(path: str) -> list[Snapshot]:
    with RunReader(path) as reader:
        return list(reader.between(0.0, time.time()))


def _sample(status: Callable[[], Snapshot]) -> list[Snapshot]:
    snapshots = [status()]
    for _ in range(_SAMPLES):
        time.sleep(_SAMPLING_S / _SAMPLES)
        snapshots.append(status())
    return snapshots


def _last_verdicts(snapshots: Sequence[Snapshot]) -> tuple[Verdict, ...]:
    """The verdicts at the last time in the run when a client was reading."""
    for at in range(len(snapshots) - 1, 0, -1):
        before = next((s for s in reversed(snapshots[:at]) if snapshots[at].time - s.time >= _SAMPLING_S / 2), None)
        if before is not None and (found := verdicts(before, snapshots[at])):
            return found
    return ()

"""The page about a run, from a file that kept it or from a look of a few seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from dsnb.errors import FailedPreconditionError
from dsnb.limits import said
from dsnb.monitor.page import page
from dsnb.monitor.run_file import RunReader
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, verdicts

_LOOK_S = 2.0
_LOOKS = 8


def write_report(path: str | os.PathLike[str], snapshots: Sequence[Snapshot]) -> str:
    """Write the page of a run; returns the path.

    Args:
        path: Of the page.
        snapshots: Of the run, the oldest first; at least one.

    Raises:
        FailedPreconditionError: the page cannot be written.
    """
    text = page(snapshots, _said(snapshots))
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise FailedPreconditionError(
            f"the report cannot be written to {os.fspath(path)} ({said(error)})",
            did="nothing was written",
            hint="name a file in a folder that you may write to",
        ) from error
    return os.path.abspath(path)


def kept(path: str) -> list[Snapshot]:
    """What a file kept of a run.

    Raises:
        FailedPreconditionError: it is something else, or nothing was kept yet.
        NotFoundError: there is no such file.
    """
    snapshots = _so_far(path)
    if not snapshots:
        raise FailedPreconditionError(
            f"{path} keeps nothing of a run yet",
            did="no report was written",
            hint="a snapshot is written each second; try again",
        )
    return snapshots


def watched(path: str | None, status: Callable[[], Snapshot]) -> list[Snapshot]:
    """A run until now: what a file has kept of it so far, if that is much, else a look of a few seconds."""
    before = _so_far(path) if path is not None else []
    return [*before, status()] if len(before) > 1 else [*before, *_look(status)]


def _so_far(path: str) -> list[Snapshot]:
    with RunReader(path) as reader:
        return list(reader.between(0.0, time.time()))


def _look(status: Callable[[], Snapshot]) -> list[Snapshot]:
    looks = [status()]
    for _ in range(_LOOKS):
        time.sleep(_LOOK_S / _LOOKS)
        looks.append(status())
    return looks


def _said(snapshots: Sequence[Snapshot]) -> tuple[Verdict, ...]:
    """The verdicts of the last moment of the run in which somebody read."""
    for at in range(len(snapshots) - 1, 0, -1):
        before = next((s for s in reversed(snapshots[:at]) if snapshots[at].time - s.time >= _LOOK_S / 2), None)
        if before is not None and (said := verdicts(before, snapshots[at])):
            return said
    return ()

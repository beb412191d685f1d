"""Combines the runs that were gathered for a frame: into one for readers in other processes, else into few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsnb.pipeline.engine.stage import Run, as_list


def concat_runs(runs: list[Run]) -> Run:
    """Join runs into one: a copy if all are arrays of one dtype and shape, else a list."""
    if len(runs) == 1 and not _is_text(runs[0]):
        return runs[0]
    if any(map(_is_text, runs)):
        return _listed(runs)  # strings of any length; an array would have the width of the longest one in these runs
    arrays = [run for run in runs if isinstance(run, np.ndarray)]
    if len(arrays) == len(runs) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        return np.concatenate(arrays)
    return _listed(runs)


def runs_for_local_readers(runs: list[Run]) -> Iterator[Run]:
    """Combine runs for readers in this process. Runs of arrays are not joined: that would copy their elements."""
    if not any(isinstance(run, np.ndarray) and run.ndim > 1 for run in runs):
        yield concat_runs(runs)  # cheap: lists hold references, and scalars are copied for the reader in any case
        return
    for run in runs:
        yield as_list(run) if _is_text(run) else run


def _is_text(run: Run) -> bool:
    return isinstance(run, np.ndarray) and run.dtype.kind in "US"


def _listed(runs: list[Run]) -> list[Any]:
    return [element for run in runs for element in as_list(run)]

"""Workers that leave in the middle of a finite DYNAMIC epoch, each of whose elements is to come once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

import dsnb
from tests.faults.chaos import paced

COUNT = 10_000
RUNS = 10
"""How often the long form of a test repeats it."""
PACE_S = 0.0001
"""How long an element takes."""
_APART = 20
"""Elements, or batches, that are read before the first worker leaves, and before the next."""
_LEAVE_S = 60.0

PIPELINES: dict[str, Callable[[float], dsnb.Dataset]] = {
    "elements": lambda pace_s: dsnb.Dataset.range(COUNT).map(paced(pace_s)),
    "shuffled batches": lambda pace_s: dsnb.Dataset.range(COUNT).map(paced(pace_s)).shuffle(200, seed=3).batch(16),
    "batches": lambda pace_s: dsnb.Dataset.range(COUNT).map(paced(pace_s)).batch(16),
    "shuffled": lambda pace_s: dsnb.Dataset.range(COUNT).shuffle(200, seed=3).map(paced(pace_s)),
    "batches of shuffled data, unseeded": lambda pace_s: (
        dsnb.Dataset.range(COUNT).map(paced(pace_s)).shuffle(200).batch(7)
    ),
}
WITH_AND_WITHOUT = ("elements", "shuffled batches")
"""The pipelines without and with operations on the workers that mix or join elements."""


def check_leaving(
    service: Any, pipeline: str, leaving: Sequence[Callable[[], object]], *, pace_s: float = PACE_S, **arguments: Any
) -> None:
    """Read an epoch in whose middle workers leave, and check that each element came once.

    Args:
        service: Has at least one worker more than leave.
        pipeline: One of `PIPELINES`.
        leaving: Calls that make a worker leave, and return when it has gone. Each runs on a thread of its own.
        pace_s: How long an element takes; more where a worker needs longer to leave.
        arguments: Further arguments of `distribute`.
    """
    data = PIPELINES[pipeline](pace_s)
    threads: list[_Leaving] = []
    with iter(data.apply(dsnb.distribute("distributed_epoch", service, job_name="train", **arguments))) as elements:
        got = _numbers(elements, _APART)
        for leave in leaving:
            threads.append(_Leaving(leave))
            got += _numbers(elements, _APART)
        gone_at = _read_until_gone(elements, threads, got, pace_s)
        got += _numbers(elements)
    for thread in threads:
        thread.finish()
    seen = Counter(got)
    missing, doubled = COUNT - len(seen), sum(seen.values()) - len(seen)
    assert (missing, doubled) == (0, 0), f"{missing} of {COUNT:,} missing, {doubled} doubled"
    assert set(seen) == set(range(COUNT))
    assert gone_at < COUNT, "the epoch was over before the workers had left"


def _read_until_gone(elements: Iterator[object], threads: Sequence[_Leaving], got: list[int], pace_s: float) -> int:
    """Read until all threads have ended, slowly enough for them; returns how many elements had come then."""
    while any(thread.is_alive() for thread in threads) and len(got) < COUNT:
        # Ever more slowly towards the end: on a busy machine workers take long to leave.
        pause_s = max(pace_s, 3.0 / (COUNT - len(got) + 1))
        arrived = _numbers(elements, 1)
        got += arrived
        for thread in threads:
            thread.join(len(arrived) * pause_s)
    return len(got)


class _Leaving(threading.Thread):
    """Makes a worker leave, and keeps the error if it cannot."""

    def __init__(self, leave: Callable[[], object]) -> None:
        super().__init__(name="test-leaving", daemon=True)
        self._leave = leave
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._leave()
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error

    def finish(self) -> None:
        self.join(_LEAVE_S)
        assert not self.is_alive(), "a worker does not leave"
        if self._error is not None:
            raise self._error


def _numbers(elements: Iterator[object], count: int | None = None) -> list[int]:
    """The numbers of the next `count` elements, or of all: elements are numbers or batches of them."""
    return [int(x) for element in islice(elements, count) for x in np.atleast_1d(element)]  # type: ignore[call-overload]

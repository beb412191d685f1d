"""What all contenders share: they wait for words on their standard input and answer each with one line of JSON.

A contender is started with its task as JSON. It prepares (services, data, imports), says that it is ready, makes one
measurement for each "go", and leaves when its input ends. So all that take part in a workload are there at once and
take turns, and none of their preparation is measured.

Nothing but the standard library is imported here: this runs in everybody's environment.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

Figures = dict[str, float]
Measure = Callable[[], Figures]
OpenStream = Callable[[], Iterator[Any]]

RESULT_PREFIX = "::answer "
"""What an answer begins with: libraries print, too."""
_WARM_UP_S = 0.3
_CLOCK_CHECK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a contender is asked to do.

    Args:
        kind: What is measured; "rate" is elements a second of a stream.
        data: What is read: "scalars", "samples", "batches", "tokens" or "images".
        shape: Of one batch.
        dtype: Of one batch.
        smooth: Whether batches compress well.
        transfer: Which transfer dsnb is to use; None leaves it the choice.
        compression: "AUTO" or None.
        seconds: How long to read in one measurement.
        options: What else the kind takes.
    """

    kind: str = "rate"
    data: str = "batches"
    shape: tuple[int, ...] = ()
    dtype: str = "uint8"
    smooth: bool = False
    transfer: str | None = None
    compression: str | None = None
    seconds: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, text: str) -> Task:
        """From what the driver says."""
        fields = json.loads(text)
        return cls(**{**fields, "shape": tuple(fields.get("shape", ()))})


def serve(prepare: Callable[[Task], AbstractContextManager[Measure]]) -> None:
    """Be a contender: prepare what the argument says, and measure as often as asked."""
    with prepare(Task.load(sys.argv[1])) as measure:
        write_result({"ready": 1})
        for line in sys.stdin:
            if line.strip() != "go":
                break
            gc.collect()
            write_result(measure())


def write_result(found: Figures) -> None:
    """One line for the driver."""
    sys.stdout.write(f"\n{RESULT_PREFIX}{json.dumps(found)}\n")
    sys.stdout.flush()


def rate(open_stream: OpenStream, nbytes: float, seconds: float) -> Figures:
    """Read a stream that has no end for a while, after its first element and a little more.

    Returns:
        Elements and bytes a second, and the processor's seconds of this process and all below it for each gigabyte.
    """
    elements = open_stream()
    next(elements)
    _, _, step = read_for(elements, _WARM_UP_S, 1)
    spent = processor_seconds(process_tree(os.getpid()))
    count, took, _ = read_for(elements, seconds, step)
    spent = processor_seconds(process_tree(os.getpid())) - spent
    with contextlib.suppress(AttributeError):
        elements.close()  # type: ignore[attr-defined] # generators and ours have it, others end when they are dropped
    del elements
    per_s = count / took
    return {"per_s": per_s, "gb_per_s": per_s * nbytes / 1e9, "cpu_s_per_gb": spent / (count * nbytes / 1e9)}


def read_for(elements: Iterator[Any], seconds: float, step: int) -> tuple[int, float, int]:
    """Read for some seconds; the clock is looked at rarely, so that it costs nobody anything.

    Returns:
        How many elements came, in how many seconds, and after how many the clock was looked at in the end.

    Raises:
        EOFError: the stream has an end, and came to it.
    """
    nothing = object()
    count = 0
    began = now = time.perf_counter()
    while now - began < seconds:
        before = now
        deque(islice(elements, step - 1), maxlen=0)
        if next(elements, nothing) is nothing:
            raise EOFError("the stream ended while its rate was measured")
        count += step
        now = time.perf_counter()
        if now - before < _CLOCK_CHECK_S:
            step *= 2
    return count, now - began, step


def processor_seconds(pids: Iterable[int]) -> float:
    """Processor time of some processes, and of their children that have ended."""
    return sum(map(_ticks, pids)) / os.sysconf("SC_CLK_TCK")


def wanted_seconds(pids: Iterable[int]) -> float:
    """Seconds in which the threads of these processes ran or waited for a processor, since they began."""
    nanoseconds = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                ran, waited, _slices = path.read_text().split()
                nanoseconds += int(ran) + int(waited)
    return nanoseconds / 1e9


def process_tree(pid: int) -> list[int]:
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                below.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += below.get(one, [])
    return found


def _ticks(pid: int) -> int:
    try:
        return sum(map(int, _stat(pid)[11:15]))
    except (OSError, IndexError):
        return 0


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat, from the third on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()

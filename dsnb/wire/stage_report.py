"""Counters of one operation of a pipeline, as the engine, a worker's reports and the status have them."""

from __future__ import annotations

import msgspec


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a pipeline; summed over the workers of a job in `JobStatus.stages`.

    The counters only grow, so that readers compute rates from two reports.

    Attributes:
        name: The operation and the name of its function, as in `map(decode)`.
        depth: Distance from the last operation of the pipeline.
        elements: Elements that left this stage.
        busy_ns: Time spent in this stage itself, without its inputs' time; summed over its threads.
        wait_ns: Time this stage waited for its inputs on another thread, or, in a source, for splits from the
            dispatcher.
        buffered: Elements that are ready in this stage now (prefetch, shuffle, parallel map).
        capacity: The maximum of `buffered`; 0 for a stage that buffers nothing.
        threads: The number of threads that call its function at present, as requested or as chosen by `AUTOTUNE`; 0
            without `num_parallel_calls`, when the thread that reads from the operation calls it.
    """

    name: str = ""
    depth: int = 0
    elements: int = 0
    busy_ns: int = 0
    wait_ns: int = 0
    buffered: int = 0
    capacity: int = 0
    threads: int = 0

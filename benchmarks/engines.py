"""How long two workers take to start on a Ray or a Dask that runs already, and the first element after that.

    python -m benchmarks.engines [--runs 5] [--write]

In an environment with Ray and Dask. Each run starts a service on the running engine, reads one element and stops. The
first run is shown apart: Ray still has the processes that it started in advance, one for each of its processors, and
processes of Dask load dsnb. "A bare actor" is what Ray takes for an actor that does nothing, and "a call" what Dask
takes for a function that does nothing on each worker.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dsnb
from benchmarks.sections import machine, table, write_section

_IDLE_S = 15.0
"""How long an engine runs before its first service."""


@contextmanager
def running_ray() -> Iterator[tuple[Any, Callable[[], object]]]:
    """Where to start workers, and the least that Ray does to start two processes."""
    import ray

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)

    class Idle:
        def answer(self) -> None:
            pass

    actor = ray.remote(num_cpus=1)(Idle)

    def bare() -> None:
        idle = [actor.remote() for _ in range(2)]
        ray.get([one.answer.remote() for one in idle])
        for one in idle:
            ray.kill(one)

    try:
        yield "ray", bare
    finally:
        ray.shutdown()


@contextmanager
def running_dask() -> Iterator[tuple[Any, Callable[[], object]]]:
    """Where to start workers, and the least that Dask does to run something on two workers."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        yield client, lambda: client.run(int)


def seconds(act: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def one_run(on: Any) -> tuple[float, float, float]:
    """Seconds of `start`, of the first element after it, and of `stop`."""
    began = time.perf_counter()
    service = dsnb.start(workers=2, on=on, name="engines")
    started = time.perf_counter()
    squares = dsnb.Dataset.range(100).map(lambda x: x * x)
    with iter(squares.apply(dsnb.distribute("distributed_epoch", service))) as elements:
        next(elements)
        there = time.perf_counter()
    return started - began, there - started, seconds(service.stop)


def rows(engine: str, runs: int) -> list[list[str]]:
    """The table's rows for one engine."""
    with (running_ray if engine == "Ray" else running_dask)() as (on, bare):
        time.sleep(_IDLE_S)
        first, *others = [one_run(on) for _ in range(runs + 1)]
        least = statistics.median(seconds(bare) for _ in range(runs))
    steps = ("`start(workers=2)`", "the first element after it", "`stop`")
    found = [
        [f"{engine}: {step}", f"{first[at]:.2f}", spread([run[at] for run in others])] for at, step in enumerate(steps)
    ]
    name = "two bare actors, to compare" if engine == "Ray" else "a call on each worker, to compare"
    return [*found, [f"{engine}: {name}", "", f"{least:.3f}"]]


def spread(figures: list[float]) -> str:
    """The median, and the least and most."""
    return f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has compiled dsnb already
    found = [row for engine in ("Ray", "Dask") for row in rows(engine, options.runs)]
    text = f"{machine()}; medians of {options.runs} runs, with the least and most.\n\n"
    text += table(["seconds", "first run", "later runs"], found)
    print(text)
    if options.write:
        write_section("performance.md", "engines", text)


if __name__ == "__main__":
    main()

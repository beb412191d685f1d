"""How jobs on the same worker share its processors: elements per second of each, beside what each makes alone.

    python -m benchmarks.several_jobs [--seconds 8] [--write]

The service has one worker, in a process of its own. A row of the table is one service; the rates are those of its last
seconds, since shares are measured and need some to settle.
"""

from __future__ import annotations

import argparse
import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import dsnb
from benchmarks.sections import machine, table, write_section
from dsnb.errors import CancelledError

_BLOCK = bytes(1_000_000)
_SETTLES_S = 8.0


def hashing(number: int) -> int:
    """Compute, mostly without the GIL."""
    for _ in range(10):
        hashlib.sha256(_BLOCK).digest()
    return number


def looping(number: int) -> int:
    """Compute with the GIL."""
    return number + 0 * sum(range(200_000))


def waiting(number: int) -> int:
    """Wait 20 ms."""
    time.sleep(0.02)
    return number


@dataclass(frozen=True, kw_only=True)
class Job:
    """A function, how many threads call it, and the job's weight."""

    words: str
    function: Callable[[int], int]
    threads: int | None = None
    weight: float = 1.0

    def __str__(self) -> str:
        threads = "1 thread" if self.threads is None else f"{self.threads} threads"
        return f"{self.words}, {threads}" + (f", weight {self.weight:g}" if self.weight != 1 else "")


HASHING = Job(words="`sha256`", function=hashing)
LOOPING = Job(words="a Python loop", function=looping)
WAITING = Job(words="waiting 20 ms", function=waiting, threads=8)
HASHING_8, LOOPING_8 = (Job(words=job.words, function=job.function, threads=8) for job in (HASHING, LOOPING))
TOGETHER = (
    (HASHING_8, HASHING),
    (LOOPING_8, LOOPING),
    (HASHING_8, Job(words="`sha256`", function=hashing, threads=8, weight=4)),
    (LOOPING, Job(words="a Python loop", function=looping, weight=3)),
    (HASHING_8, HASHING_8, HASHING),
    (HASHING_8, WAITING),
)


def rates(jobs: tuple[Job, ...], seconds: float) -> list[float]:
    """Elements per second of each job, while all run."""
    with dsnb.start(workers=1, isolation="process", name="several-jobs") as service:
        iterators = []
        for number, job in enumerate(jobs):
            data = dsnb.Dataset.range(10**9).map(job.function, num_parallel_calls=job.threads)
            share = dsnb.distribute("parallel_epochs", service, job_name=f"job {number}", weight=job.weight)
            iterators.append(iter(data.apply(share)))
        counts = [0] * len(jobs)

        def read(number: int) -> None:
            with suppress(CancelledError):
                for _ in iterators[number]:
                    counts[number] += 1

        readers = [threading.Thread(target=read, args=(number,)) for number in range(len(jobs))]
        for reader in readers:
            reader.start()
        time.sleep(_SETTLES_S)
        before = list(counts)
        time.sleep(seconds)
        made = [(now - was) / seconds for now, was in zip(counts, before, strict=True)]
        for iterator in iterators:
            iterator.close()
        for reader in readers:
            reader.join()
    return made


def measured(seconds: float) -> str:
    """The table."""
    alone = {str(job): rates((job,), seconds)[0] for job in {str(job): job for row in TOGETHER for job in row}.values()}
    rows = []
    for jobs in TOGETHER:
        together = rates(jobs, seconds)
        rows.append(
            [
                "; ".join(map(str, jobs)),
                "; ".join(f"{alone[str(job)]:.0f}" for job in jobs),
                "; ".join(f"{rate:.0f}" for rate in together),
            ]
        )
    return table(["jobs", "each alone", "together"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/several_jobs.md")
    options = parser.parse_args()
    text = f"{machine()}.\n\n{measured(options.seconds)}"
    print(text)
    if options.write:
        write_section("several_jobs.md", "several_jobs", text)


if __name__ == "__main__":
    main()

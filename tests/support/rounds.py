"""Consumers of a coordinated read, all in one process, and what must hold of each round that they take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import dsnb
from dsnb.monitor.snapshot import Snapshot
from tests.support.reading import run_in_threads
from tests.support.waiting import wait_for

Row = list[int]
ENDLESS = 1 << 40


def numbers_in_rounds(consumers: int, service: Any, job: str = "job", **options: Any) -> list[dsnb.Dataset]:
    """The numbers from 0 on, for each consumer."""
    mode = options.pop("mode", "parallel_epochs")
    source = dsnb.Dataset.range(ENDLESS).repeat()
    return [
        source.apply(
            dsnb.distribute(mode, service, job_name=job, consumer_index=index, num_consumers=consumers, **options)
        )
        for index in range(consumers)
    ]


class Consumers:
    """Reads with all consumers of one job and checks that rounds are whole.

    Args:
        datasets: One for each consumer.

    Example:
        >>> with Consumers(numbers_in_rounds(2, cluster.service)) as consumers:
        ...     consumers.rounds(2)
        [[0, 1], [2, 3]]
    """

    def __init__(self, datasets: list[dsnb.Dataset]) -> None:
        self.datasets = datasets
        self.iterators: list[Iterator[Any]] = [iter(dataset).start() for dataset in datasets]

    def __len__(self) -> int:
        return len(self.iterators)

    def round(self) -> Row:
        """One round, taken by all in turn: as one thread does that reads for all of them."""
        return self.check([int(next(iterator)) for iterator in self.iterators])

    def rounds(self, count: int) -> list[Row]:
        """So many rounds."""
        return [self.round() for _ in range(count)]

    def rounds_in_threads(self, count: int, timeout: float = 60.0) -> list[Row]:
        """So many rounds, each consumer in a thread of its own."""

        def read(iterator: Iterator[Any]) -> Callable[[], Row]:
            return lambda: [int(next(iterator)) for _ in range(count)]

        columns = run_in_threads([read(iterator) for iterator in self.iterators], timeout)
        return [self.check(list(row)) for row in zip(*columns, strict=True)]

    def rounds_until(self, found: Callable[[Row], bool], most: int = 50_000) -> list[Row]:
        """Rounds up to one that is looked for."""
        rows = []
        for _ in range(most):
            rows.append(self.round())
            if found(rows[-1]):
                return rows
        raise AssertionError(f"not found in {most} rounds; the last ones are {rows[-5:]}")

    def check(self, row: Row) -> Row:
        """A round: as many numbers as there are consumers, next to each other, one turn of a task."""
        count = len(self.iterators)
        assert row == list(range(row[0], row[0] + count)), f"no round: {row}"
        assert row[0] % count == 0, f"a round of two turns: {row}"
        return row

    def rejoin(self, index: int) -> None:
        """Start a consumer again."""
        close(self.iterators[index])
        self.iterators[index] = iter(self.datasets[index]).start()

    def close(self) -> None:
        threads = [threading.Thread(target=close, args=(iterator,)) for iterator in self.iterators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def wait_until_all_read(status: Callable[[], Snapshot], job: str = "job", timeout: float = 60.0) -> None:
    """Wait until all consumers have come, and know where they are."""

    def all_read() -> bool:
        found = status().job(job)
        rounds = found.rounds if found is not None else None
        return rounds is not None and not rounds.halted and all(one.state == "reading" for one in rounds.consumers)

    wait_for(all_read, what="all consumers to read", timeout=timeout)


def close(iterator: Iterator[Any]) -> None:
    """Close what `iter(dataset)` gave."""
    iterator.close()  # type: ignore[attr-defined]

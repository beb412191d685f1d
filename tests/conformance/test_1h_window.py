"""Section 1H, the original's C++ lines: on the window core, and on a task with a real producer around it.

The window decides, so the order, the skips and the counts are asserted there exactly; threads, waiting and cancelling
are the task's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import CancelledError, DsnbError, InvalidArgumentError, UnavailableError
from dsnb.worker.shared_log import SharedLog
from tests.conformance.tasks import END, TaskBench, TaskReader, numbers
from tests.support.reading import run_in_threads
from tests.support.waiting import wait_for

ELEMENT_BYTES = 8


class Cache:
    """A window that is read as the original's cache is: one element at a time, produced when nobody has it yet."""

    def __init__(self, capacity: int, source: Sequence[Any] | None = None) -> None:
        self.window = SharedLog(capacity=capacity, read_ahead_bytes=0, keep=True)
        self.source = source
        self.asked: dict[str, int] = {}

    def get(self, trainer: str) -> Any:
        """The next element of a trainer; an error that stands in its place is raised."""
        window = self.window
        if trainer not in self.asked:
            self.asked[trainer] = 0
            window.attach(trainer, trainer)
        self.asked[trainer] += 1
        window.credit(trainer, self.asked[trainer], self.asked[trainer] - 1, 1 << 20)
        taken = window.take(trainer)
        while taken is None:
            assert window.wants_more()
            value = window.head if self.source is None else self.source[window.head]
            window.append(value, 1, ELEMENT_BYTES, isinstance(value, Exception))
            taken = window.take(trainer)
        window.credit(trainer, self.asked[trainer], self.asked[trainer], 1 << 20)
        window.validate()
        assert (taken.start, taken.count) == (0, 1)
        if isinstance(taken.frame, Exception):
            raise taken.frame
        return taken.frame

    def take(self, trainer: str, count: int) -> list[Any]:
        return [self.get(trainer) for _ in range(count)]


def test_line_122_get_from_one_trainer() -> None:
    assert Cache(1024).take("Trainer", 10) == list(range(10))


def test_line_123_get_from_multiple_trainers() -> None:
    cache = Cache(1024)
    for step in range(10):
        assert [cache.get(f"Trainer {at}") for at in range(10)] == [step] * 10
    assert cache.window.head == 10, "each element was produced once"


def test_line_124_slow_trainers_skip_data() -> None:
    cache = Cache(5 * ELEMENT_BYTES)
    fast, slow = "Fast trainer", "Slow trainer"
    assert (cache.get(fast), cache.get(slow)) == (0, 0)
    assert cache.take(fast, 19) == list(range(1, 20))
    assert cache.get(slow) == 15  # the last five are 15 to 19
    assert cache.take(fast, 80) == list(range(20, 100))
    assert cache.get(slow) == 95
    trainers = cache.window.trainers
    assert (trainers[fast].skipped, trainers[slow].skipped) == (0, 14 + 79)
    assert cache.window.evicted == 95


def test_line_125_new_trainers_start_late() -> None:
    cache = Cache(5 * ELEMENT_BYTES)
    assert cache.take("First trainer", 100) == list(range(100))
    assert [cache.get(f"Trainer {at}") for at in range(100)] == [95] * 100
    assert all(cache.window.trainers[f"Trainer {at}"].skipped == 0 for at in range(100)), "new ones have missed nothing"


def test_line_126_cache_hit_metrics() -> None:
    cache = Cache(1024)
    cache.take("Trainer 1", 10)
    one = cache.window.trainers["Trainer 1"]
    assert (one.misses, one.hits) == (10, 0)
    cache.take("Trainer 2", 10)
    other = cache.window.trainers["Trainer 2"]
    assert (one.misses, one.hits, other.misses, other.hits) == (10, 0, 0, 10)
    cache.take("Trainer 2", 5)
    cache.take("Trainer 1", 5)
    assert (one.misses, one.hits, other.misses, other.hits) == (10, 5, 5, 10), "who asks first has the miss"


def test_line_127_cache_size_metrics() -> None:
    cache = Cache(5 * ELEMENT_BYTES)
    sizes = []
    for _ in range(100):
        cache.get("Trainer")
        sizes.append(cache.window.nbytes)
    assert sizes[:5] == [8, 16, 24, 32, 40]
    assert set(sizes[5:]) == {40}


def endless() -> dsnb.Dataset:
    return dsnb.Dataset.range(1_000_000_000)


def read_until_stopped(reader: TaskReader, seen: list[int]) -> Exception:
    """Read on; what the reading ended with."""
    try:
        while True:
            seen.append(int(reader.get()))
    except Exception as error:  # noqa: BLE001 - whatever ends it is looked at
        return error


@pytest.mark.slow
def test_line_128_cancel() -> None:
    with TaskBench(endless(), cached=True) as bench:
        readers = [bench.reader(f"Trainer {at}") for at in range(10)]
        seen: list[list[int]] = [[] for _ in readers]
        ends: list[Exception] = []
        threads = [
            threading.Thread(target=lambda r=reader, s=got: ends.append(read_until_stopped(r, s)))
            for reader, got in zip(readers, seen, strict=True)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 1.0
        wait_for(lambda: time.monotonic() > until and all(seen), what="all readers to have read for a second")
        assert ends == []
        bench.task.stop(CancelledError("the cache was cancelled"))
        for thread in threads:
            thread.join(5.0)

        assert [str(error) for error in ends] == ["the cache was cancelled"] * 10
        assert {type(error) for error in ends} == {CancelledError}
        for got in seen:
            assert got == sorted(set(got)), "in order, none twice"
        for reader in readers:
            assert isinstance(read_until_stopped(reader, []), CancelledError), "and so are later reads"
        with pytest.raises(UnavailableError, match="was stopped"):  # a client goes on with another worker, so no end
            bench.reader("New trainer")


def script() -> list[Any]:
    """What line 129 produces."""
    errors = [CancelledError("cancelled"), InvalidArgumentError("invalid argument"), UnavailableError("unavailable")]
    return [0, errors[0], 2, errors[1], 4, errors[2], *range(6, 100)]


def told(values: Sequence[Any]) -> list[Any]:
    """Elements as numbers, errors as class and text."""
    return [(type(value), value.what) if isinstance(value, DsnbError) else int(value) for value in values]


def outcomes(get: Any, count: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(count):
        try:
            out.append(get())
        except Exception as error:  # noqa: BLE001 - what stands in an element's place
            out.append(error)
    return out


def test_line_129_errors() -> None:
    values = script()
    cache = Cache(1024, values)
    assert outcomes(lambda: cache.get("Reading trainer"), 6) == values[:6]
    assert outcomes(lambda: cache.get("New trainer"), 3) == [0, 2, 4]


def test_line_129_errors_of_a_pipeline() -> None:
    values = script()

    def scripted(index: Any) -> Any:
        value = values[int(index)]
        if isinstance(value, Exception):
            raise value
        return value

    with TaskBench(dsnb.Dataset.range(100).map(scripted), cached=True, ahead=1) as bench:
        assert told(outcomes(bench.reader("Reading trainer").get, 6)) == told(values[:6])
        new = bench.reader("New trainer")
        assert told(outcomes(new.get, 3)) == [0, 2, 4]


def test_line_130_cache_size_is_too_small() -> None:
    with TaskBench(endless(), cached=True, capacity=1) as bench:
        reader = bench.reader("Trainer")
        for _ in range(3):  # each element is refused in its own place
            with pytest.raises(InvalidArgumentError, match="element size is larger than cache size in bytes"):
                reader.get()


def test_line_130_only_the_element_that_is_too_large_is_refused() -> None:
    sizes = [10, 100, 10]
    dataset = dsnb.Dataset.from_tensor_slices(sizes).map(lambda n: np.zeros(n, np.uint8)).repeat()
    with TaskBench(dataset, cached=True, capacity=50) as bench:
        got = outcomes(bench.reader("Trainer").get, 6)
    assert [len(got[at]) for at in (0, 2, 3, 5)] == [10] * 4
    assert all("(100 > 50)" in str(got[at]) for at in (1, 4))


def test_line_131_trainer_id_must_be_non_empty() -> None:
    with TaskBench(endless(), cached=True) as bench, pytest.raises(InvalidArgumentError, match="non-empty trainer ID"):
        bench.reader("").get()


def test_line_132_caching_task_runner_get_next() -> None:
    with TaskBench(endless(), cached=True) as bench:
        for at in range(10):
            reader = bench.reader(f"Trainer {at}")
            assert numbers(reader.get() for _ in range(10)) == list(range(10))
            assert numbers(reader.get() for _ in range(at)) == list(range(10, 10 + at)), "the stream goes on"


def test_line_133_caching_task_runner_empty_dataset() -> None:
    with TaskBench(dsnb.Dataset.range(0), cached=True) as bench:
        for trainer in ("Trainer 1", "Trainer 2"):
            assert bench.reader(trainer).get() is END


def test_line_134_caching_task_runner_slow_client_skips_data() -> None:
    with TaskBench(endless(), cached=True, capacity=100) as bench:
        fast = bench.reader("Fast trainer")
        assert numbers(fast.get() for _ in range(1000)) == list(range(1000))
        slow = bench.reader("Slow trainer")
        values = numbers(slow.get() for _ in range(1000))
        assert values[0] > 0
        assert len(values) == 1000
        assert values == sorted(set(values)), "in order, none twice"


def test_line_135_caching_task_runner_concurrent_trainers() -> None:
    with TaskBench(endless(), cached=True) as bench:
        readers = [bench.reader(f"Trainer {at}") for at in range(10)]
        got = run_in_threads([lambda reader=reader: numbers(reader.get() for _ in range(100)) for reader in readers])
    assert got == [list(range(100))] * 10


def test_line_136_caching_task_runner_cancel_concurrent_readers() -> None:
    with TaskBench(endless(), cached=True) as bench:
        readers = [bench.reader(f"Trainer {at}") for at in range(10)]
        seen: list[list[int]] = [[] for _ in readers]

        def stop() -> Exception:
            wait_for(lambda: all(len(got) > 10 for got in seen), what="all to be reading")
            error = CancelledError("stopped")
            bench.task.stop(error)
            return error

        calls = [lambda r=reader, s=got: read_until_stopped(r, s) for reader, got in zip(readers, seen, strict=True)]
        *ends, error = run_in_threads([*calls, stop])
        assert ends == [error] * 10
        for reader, got in zip(readers, seen, strict=True):
            assert got == list(range(len(got)))
            assert read_until_stopped(reader, []) is error, "and so are later reads"


def test_line_136_cancelling_wakes_readers_that_wait_for_an_element() -> None:
    stuck = threading.Event()

    def never() -> Any:
        stuck.wait(30.0)
        yield 0

    with TaskBench(dsnb.Dataset.from_generator(never), cached=True) as bench:
        readers = [bench.reader(f"Trainer {at}") for at in range(10)]
        error = CancelledError("stopped")

        def stop() -> None:
            bench.task.stop(error)

        calls: list[Callable[[], Any]] = [lambda reader=reader: read_until_stopped(reader, []) for reader in readers]
        assert run_in_threads([*calls, stop], timeout=5.0) == [error] * 10 + [None]
        stuck.set()

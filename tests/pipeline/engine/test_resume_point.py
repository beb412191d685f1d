"""A fresh stage that begins at a resume point gives exactly what the first one would have given from there on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import dsnb
from dsnb.pipeline.engine.resume_point import (
    START,
    ResumablePositions,
    ResumePoint,
    from_text,
    needs_released_splits,
    to_text,
)
from dsnb.pipeline.engine.stage import Stage, repeated_seconds
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.operations.with_options import build_pipeline
from dsnb.pipeline.splits import split_providers
from dsnb.wire.messages import SplitRange, SplitsReply, SplitsRequest
from dsnb.worker.splits import DispatcherFeed


@dataclass
class Splits:
    """Hands out splits as a dispatcher does, in runs of a few, and remembers what the task was given."""

    counts: list[int]
    runs: list[SplitRange] = field(default_factory=list)
    next: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next = [[0, 0] for _ in self.counts]
        self._given: dict[tuple[int, int, int], SplitRange] = {}
        self.random = random.Random(7)

    def ask(self, request: SplitsRequest) -> SplitsReply:
        place = self.next[request.provider]
        if request.repetition < place[0]:
            return SplitsReply(done=True)
        if request.repetition > place[0]:
            place[:] = [request.repetition, 0]
        first, count = place[1], self.counts[request.provider]
        if first == count:
            place[:] = [request.repetition + 1, 0]
            return SplitsReply(done=True)
        end = place[1] = min(count, first + self.random.randint(1, 5))
        self.runs.append(SplitRange(provider=request.provider, repetition=request.repetition, first=first, end=end))
        return SplitsReply(first=first, end=end)

    def forget(self, point: ResumePoint) -> None:
        """Do as the dispatcher does with the splits that are behind for good."""
        for source in point.sources():
            left = source.finished_splits
            kept = []
            for run in self.runs:
                if run.provider != source.provider:
                    kept.append(run)
                elif run.repetition == source.repetition:
                    gone = min(left, run.end - run.first)
                    left -= gone
                    if run.first + gone < run.end:
                        kept.append(replace(run, first=run.first + gone))
                elif run.repetition > source.repetition:
                    kept.append(run)
            self.runs = kept


def build(dataset: dsnb.Dataset, splits: Splits | None) -> Stage:
    feed = DispatcherFeed("t", len(splits.counts), splits.ask, splits.runs) if splits else None
    sizes = tuple(provider.size for provider in split_providers(dataset.operation))
    return build_pipeline(dataset.operation, BuildContext(entropy=5, splits=feed, split_sizes=sizes))


def pull(stage: Stage, count: int, rng: random.Random) -> list[Any]:
    """Up to `count` elements, an error as the text of it."""
    out: list[Any] = []
    while len(out) < count:
        try:
            run = stage.pull(rng.randint(1, count - len(out)))
        except ValueError as error:
            out.append(str(error).splitlines()[0])
            continue
        if not len(run):
            return out
        out += [np.asarray(element).tolist() if not isinstance(element, tuple) else repr(element) for element in run]
    return out


def odd(x: int) -> bool:
    return bool(x % 2)


def fails_at_7(x: int) -> int:
    if x == 7:
        raise ValueError("seven")
    return int(x) * 10


def rows(x: int) -> np.ndarray[Any, Any]:
    return np.full(int(x) % 4, x)


def inner(x: int) -> dsnb.Dataset:
    return dsnb.Dataset.range(int(x) % 5).shuffle(3, seed=None)


numbers = dsnb.Dataset.range(60)
PIPELINES: dict[str, Callable[[], dsnb.Dataset]] = {
    "source": lambda: numbers,
    "slices": lambda: dsnb.Dataset.from_tensor_slices(np.arange(40)),
    "map": lambda: numbers.map(fails_at_7),
    "parallel map": lambda: numbers.map(fails_at_7, num_parallel_calls=3).prefetch(4),
    "batch": lambda: numbers.map(lambda x: x * 2).batch(7),
    "batch behind errors": lambda: numbers.map(fails_at_7).batch(4),
    "batch, remainder dropped": lambda: numbers.batch(7, drop_remainder=True),
    "batch of a shuffle": lambda: numbers.shuffle(9).batch(7),
    "batch, repeated": lambda: numbers.batch(7).repeat(3),
    "batch of batches": lambda: numbers.batch(7).map(lambda x: x).batch(2, drop_remainder=True).unbatch(),
    "rows of batches": lambda: numbers.map(fails_at_7).batch(7).unbatch().filter(odd),
    "items": lambda: dsnb.Dataset.from_random_access(range(50), shuffle=True, seed=3).map(fails_at_7).batch(8),
    "filter": lambda: numbers.filter(odd),
    "filter behind errors": lambda: numbers.map(fails_at_7).filter(odd),
    "batch of filter": lambda: numbers.filter(odd).batch(4),
    "unbatch": lambda: numbers.map(rows).unbatch(),
    "flat_map": lambda: numbers.flat_map(inner),
    "interleave": lambda: numbers.interleave(inner, cycle_length=3, block_length=2),
    "shuffle": lambda: numbers.shuffle(9),
    "map behind shuffle": lambda: numbers.filter(odd).shuffle(9).map(lambda x: x + 1).batch(3),
    "enumerate": lambda: numbers.filter(odd).enumerate(),
    "take": lambda: numbers.filter(odd).take(20),
    "skip": lambda: numbers.skip(5).map(fails_at_7),
    "zip": lambda: dsnb.Dataset.zip((numbers, dsnb.Dataset.range(100, 140))),
    "repeat": lambda: numbers.take(11).map(fails_at_7).repeat(4),
    "repeat of a shuffle": lambda: numbers.shuffle(5).repeat(3).filter(odd),
    "repeat without end": lambda: dsnb.Dataset.range(9).filter(odd).repeat().batch(3),
    "repeat of a few": lambda: dsnb.Dataset.range(5).repeat(40),
    "repeat of a few that are shuffled": lambda: dsnb.Dataset.range(7).shuffle(3).map(fails_at_7).repeat(30),
    "repeat of what is mostly left out": lambda: dsnb.Dataset.range(8).filter(odd).map(fails_at_7).repeat(30),
    "window": lambda: numbers.scan(np.int64(0), lambda s, x: (s + x, s + x)),
    "generator": lambda: dsnb.Dataset.from_generator(lambda: iter(range(30))),
    "tensors": lambda: dsnb.Dataset.from_tensors(np.arange(3)),
}  # fmt: skip


@pytest.fixture(params=["splits", "everything"])
def with_splits(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "splits")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", PIPELINES)
def test_a_stage_that_begins_at_a_resume_point_goes_on_exactly_there(name: str, with_splits: bool, seed: int) -> None:
    check(PIPELINES[name](), seed, with_splits=with_splits)


@pytest.mark.parametrize("seed", range(6))
def test_files_begin_in_the_file_in_which_they_stopped(tmp_path: Path, with_splits: bool, seed: int) -> None:
    for number in range(9):
        lines = "".join(f"{number}.{line}\n" for line in range((number * 7) % 6))
        (tmp_path / f"{number}.txt").write_text(lines)
        with dsnb.TFRecordWriter(str(tmp_path / f"{number}.tfrecord")) as writer:
            for line in lines.split():
                writer.write(line.encode())
    texts = [str(path) for path in sorted(tmp_path.glob("*.txt"))]
    records = [str(path) for path in sorted(tmp_path.glob("*.tfrecord"))]
    check(dsnb.TextLineDataset(texts).batch(3), seed, with_splits=with_splits)
    check(dsnb.TFRecordDataset(records), seed, with_splits=with_splits)
    check(dsnb.Dataset.from_tensor_slices(texts).interleave(dsnb.TextLineDataset), seed, with_splits=with_splits)


def check(dataset: dsnb.Dataset, seed: int, *, with_splits: bool) -> None:
    rng = random.Random(seed)
    counts = [provider.count for provider in split_providers(dataset.operation)]
    splits = Splits(counts) if with_splits else None
    expected = elements_of(dataset, counts if with_splits else None)
    stage = build(dataset, splits)
    base = 0
    for _ in range(4):
        got: list[Any] = []
        count, point, at = 0, START, 0
        for _ in range(rng.randint(1, 6)):
            got += pull(stage, rng.randint(1, 25), rng)
            count = rng.randint(count, len(got))
            newer = from_text(to_text(stage.resume_point(count)))
            if not needs_released_splits(newer, point):
                point, at = newer, count
        assert got == expected[base : base + len(got)]
        stage.close()
        if splits is not None:
            splits.forget(point)
        base += at
        stage = build(dataset, splits)
        stage.begin_at(point)
    rest = pull(stage, 150, rng)
    stage.close()
    assert rest == expected[base : base + len(rest)]
    assert base + len(rest) >= min(len(expected), 150)


def elements_of(dataset: dsnb.Dataset, counts: list[int] | None) -> list[Any]:
    stage = build(dataset, Splits(counts) if counts is not None else None)
    try:
        return pull(stage, 900, random.Random(1))
    finally:
        stage.close()


def test_what_is_computed_again_is_bounded_by_what_a_stage_cannot_tell_apart() -> None:
    calls: list[int] = []

    def seen(x: int) -> bool:
        calls.append(int(x))
        return x % 3 == 0

    dataset = dsnb.Dataset.range(100_000).filter(seen).map(lambda x: x + 1).batch(10)
    splits = Splits([100_000])
    stage = build(dataset, splits)
    got = pull(stage, 2_000, random.Random(0))
    point = stage.resume_point(1_500)
    assert repeated_seconds(stage, point) < 0.1 * stage.spent_ns / 1e9
    stage.close()
    splits.forget(point)
    assert sum(run.end - run.first for run in splits.runs) < 40_000
    calls.clear()
    again = build(dataset, splits)
    again.begin_at(point)
    assert pull(again, 3, random.Random(0)) == got[1_500:1_503]
    again.close()
    assert min(calls) > 44_000, "the predicate was called for elements of long ago"


def test_a_shuffle_begins_at_the_start_and_says_what_that_costs() -> None:
    stage = build(dsnb.Dataset.range(100).map(lambda x: x).shuffle(10), Splits([100]))
    pull(stage, 50, random.Random(0))
    point = stage.resume_point(40)
    assert (point.skip, next(point.sources()).finished_splits) == (40, 0)
    assert 0 < repeated_seconds(stage, point) <= stage.spent_ns / 1e9
    stage.close()


def test_marks_are_bounded_and_the_newest_is_kept() -> None:
    marks = ResumablePositions()
    for number in range(50_000):
        marks.add(number, 2 * number, 0)
    found = marks.last_before(30_000)
    assert found is not None
    assert 20_000 < found[0] <= 30_000
    assert marks.last_before(10**9) == (49_999, 99_998, 0)


def test_a_point_travels_as_text() -> None:
    point = ResumePoint(
        skip=2,
        counter=1,
        skip_one_by_one=True,
        inputs=(ResumePoint(provider=1, repetition=2, finished_splits=3), START),
    )
    assert from_text(to_text(point)) == point
    assert to_text(START) == "{}"

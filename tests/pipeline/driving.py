"""Ways to run a pipeline that tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle, repeat
from typing import Any

import numpy as np

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import Stage, as_list
from dsnb.pipeline.operation import BuildContext

MOST = 10_000
"""More pulls than any test needs: a pipeline that never ends fails instead of hanging."""


def context(
    entropy: int = 7,
    iteration_path: tuple[int, ...] = (0,),
    splits: Any = None,
    low_latency: bool = False,
    split_sizes: tuple[int, ...] = (),
) -> BuildContext:
    return BuildContext(
        entropy=entropy, iteration_path=iteration_path, splits=splits, low_latency=low_latency, split_sizes=split_sizes
    )


def no_room(_nbytes: int) -> None:
    """Nowhere in particular for elements to be laid out."""


class Rooms:
    """Memory for elements, each piece of its own, that a test looks at afterwards."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def __call__(self, nbytes: int) -> Any:
        self.pieces.append(np.zeros(nbytes, np.uint8))
        return self.pieces[-1]

    def hold(self, *arrays: Any) -> bool:
        """Whether each of these lies in one of the pieces."""
        return all(any(np.shares_memory(array, piece) for piece in self.pieces) for array in arrays)


def drain(stage: Stage, wants: Sequence[int] = (1024,)) -> list[Any]:
    """Everything a stage gives, errors in their places; the last of `wants` is used for the rest."""
    out: list[Any] = []
    for want in chain(wants, repeat(wants[-1], MOST)):
        try:
            run = stage.pull(want)
        except Exception as error:  # noqa: BLE001 - what a pipeline raises is part of what it gives
            out.append(error)
            continue
        assert len(run) <= want
        if not len(run):
            assert not len(stage.pull(want)), "the end stays the end"
            return out
        out += as_list(run)
    raise AssertionError(f"no end after {MOST} pulls")


def run(dataset: Dataset, wants: Sequence[int] = (1024,), **settings: Any) -> list[Any]:
    """Build a dataset's stages, drain them, close them."""
    stage = dataset.operation.build(context(**settings))
    try:
        return drain(stage, wants)
    finally:
        stage.close()


def outcomes(dataset: Dataset) -> list[Any]:
    """What a user sees who catches each error and reads on."""
    out: list[Any] = []
    with iter(dataset) as elements:
        for _ in range(MOST):
            try:
                out.append(next(elements))
            except StopIteration:
                return out
            except Exception as error:  # noqa: BLE001 - as above
                out.append(error)
    raise AssertionError(f"no end after {MOST} elements")


def plain(value: Any) -> Any:
    """Elements as Python values, errors as the names of their classes; for `==`."""
    if isinstance(value, Exception):
        return type(value).__name__
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, list):
        return [plain(child) for child in value]
    return tuple(plain(child) for child in value) if isinstance(value, tuple) else value


def values(dataset: Dataset) -> list[Any]:
    """The elements as plain Python."""
    return [plain(element) for element in dataset]


def failing_at(*bad: int) -> Callable[[int], int]:
    """A function that gives its argument back, and raises for some."""

    def picky(x: int) -> int:
        if x in bad:
            raise RuntimeError(f"{x} is bad")
        return x

    return picky


class Feed:
    """Splits handed out to several tasks from one place, as a dispatcher does it.

    Each task's source opens repetition after repetition; within one, tasks take pieces by turns.
    """

    def __init__(self, counts: Sequence[int], piece: int = 2) -> None:
        self._counts = counts
        self._piece = piece
        self._next: dict[tuple[int, int], int] = {}
        self.opened: list[int] = []

    def task(self) -> TaskFeed:
        return TaskFeed(self)

    def pieces(self, provider: int, repetition: int) -> Iterator[tuple[int, int]]:
        while (first := self._next.get((provider, repetition), 0)) < self._counts[provider]:
            end = min(first + self._piece, self._counts[provider])
            self._next[provider, repetition] = end
            yield first, end


class TaskFeed:
    """One task's side of a `Feed`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.refused = False
        self._repetitions = [0] * 16

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        self._feed.opened.append(provider)
        repetition = self._repetitions[provider]
        self._repetitions[provider] += 1
        return self._feed.pieces(provider, repetition)

    def repetition(self, provider: int) -> int:
        return self._repetitions[provider] - 1


def by_turns(stages: Sequence[Stage]) -> list[list[Any]]:
    """Pull several stages one element at a time until all have ended."""
    out: list[list[Any]] = [[] for _ in stages]
    open_stages = set(range(len(stages)))
    for number in cycle(range(len(stages))):
        if not open_stages:
            return out
        if number in open_stages:
            pulled = as_list(stages[number].pull(1))
            out[number] += pulled
            if not pulled:
                open_stages.discard(number)
    raise AssertionError("unreachable")

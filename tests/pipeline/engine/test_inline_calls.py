"""User code on the thread that pulls: what exists can be taken meanwhile, and nothing is lost or doubled for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dsnb.errors import CancelledError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.calls import Extend, InlineCalls
from dsnb.pipeline.engine.stage import Run, Stage
from tests.pipeline.driving import context, drain, failing_at, plain, run
from tests.support.waiting import wait_for


class Held:
    """Doors before some elements, which a test opens one by one."""

    def __init__(self, *elements: int) -> None:
        self.doors = {element: threading.Event() for element in elements}
        self.seen: list[int] = []
        self.threads: set[int] = set()

    def __call__(self, x: Any) -> int:
        self.seen.append(int(x))
        self.threads.add(threading.get_ident())
        if int(x) in self.doors:
            assert self.doors[int(x)].wait(30.0)
        return int(x)

    def states(self, state: int, x: Any) -> tuple[int, int]:
        return state + 1, self(x)

    def at(self, element: int) -> bool:
        return self.seen[-1:] == [element]


class Bench:
    """A stage, and a thread of its own that pulls it."""

    def __init__(self, dataset: Dataset) -> None:
        self.stage: Stage = dataset.operation.build(context(low_latency=True))
        self.in_place = self.stage.enable_inline_calls()
        self._puller = ThreadPoolExecutor(1)

    def pull(self, want: int = 1000) -> Future[Run]:
        return self._puller.submit(self.stage.pull, want)

    def pull_until(self, held: Held, element: int) -> tuple[list[Any], Future[Run]]:
        """What came of the pulls before the one that waits at the door of `element`, and that one.

        There are such pulls only where another map is behind: its runs are shorter while the machine is busy.
        """
        before: list[Any] = []
        while True:
            pulled = self.pull()
            wait_for(lambda: held.at(element) or pulled.done(), what="the call that takes long")  # noqa: B023 - at once
            if held.at(element):
                return before, pulled
            before += plain(list(pulled.result()))

    def rest(self) -> list[Any]:
        return self._puller.submit(drain, self.stage).result(30.0)

    def close(self) -> None:
        self.stage.cancel()
        self._puller.submit(self.stage.close).result(30.0)
        self._puller.shutdown()


Make = Callable[[Dataset], Bench]


@pytest.fixture
def bench() -> Iterator[Make]:
    made: list[Bench] = []

    def make(dataset: Dataset) -> Bench:
        made.append(Bench(dataset))
        return made[-1]

    yield make
    for one in made:
        one.close()


PIPELINES: dict[str, Callable[[Held], Dataset]] = {
    "map": lambda held: Dataset.range(100).map(held),
    "scan": lambda held: Dataset.range(100).scan(0, held.states),
    "generator": lambda held: Dataset.from_generator(lambda: map(held, range(100))),
    "map behind another": lambda held: Dataset.range(1, 101).map(lambda x: x - 1).map(held),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_a_pull_has_so_far_is_taken_once(bench: Make, name: str) -> None:
    held = Held(30, 31)
    one = bench(PIPELINES[name](held))
    before, first = one.pull_until(held, 30)
    early = one.stage.take_partial_run()
    assert before + plain(early) == list(range(30))
    assert one.stage.take_partial_run() == []
    held.doors[30].set()
    assert plain(list(first.result(30.0))) == [30], "the pull ends with the call that was being made"
    assert one.stage.elements == 31
    held.doors[31].set()
    assert plain(one.rest()) == list(range(31, 100))
    assert held.seen == list(range(100))
    assert len(held.threads) == 1


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pull_that_was_taken_whole_goes_on_with_a_single_call(
    bench: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at once: what a longer run had would wait for the run's slowest call."""
    held, taken = Held(), list[Any]()

    class LookedAt(InlineCalls):
        def __init__(self, extend: Extend) -> None:
            def looked_at_in_the_last_moment(out: list[Any], left: list[Any]) -> BaseException | None:
                failure = extend(out, left)
                if extend in last_stage and not taken:
                    taken.extend(one.stage.take_partial_run() or ())
                return failure

            super().__init__(looked_at_in_the_last_moment)
            last_stage[:] = [extend]

    last_stage = list[Extend]()
    monkeypatch.setattr("dsnb.pipeline.engine.calls.InlineCalls", LookedAt)
    one = bench(PIPELINES[name](held))
    before, last = list[Any](), list[Any]()
    while not taken:  # at once but where another map is behind: its runs are shorter while the machine is busy
        before, last = before + last, plain(list(one.pull(4).result(30.0)))
    assert len(last) == 1
    assert held.seen == before + plain(taken) + last == list(range(len(held.seen)))
    assert plain(one.rest()) == list(range(last[0] + 1, 100))


def test_a_pull_goes_on_where_everything_it_made_was_taken(bench: Make) -> None:
    held = Held(3)

    def failing_in_the_end(x: Any) -> int:
        if held(x) == 3:
            raise ValueError(x)
        return int(x)

    one = bench(Dataset.range(6).map(failing_in_the_end))
    first = one.pull()
    wait_for(lambda: held.at(3), what="the call that fails")
    assert plain(one.stage.take_partial_run()) == [0, 1, 2]
    held.doors[3].set()
    with pytest.raises(ValueError, match="3"):
        first.result(30.0)
    assert plain(one.rest()) == [4, 5]


def test_what_was_taken_does_not_change_when_its_buffer_is_used_again(bench: Make) -> None:
    held, buffer = Held(120), np.zeros(1)

    def changed_its_mind(x: int) -> Any:
        held(x)
        buffer[0] = x
        return int(x) if x < 100 else buffer

    one = bench(Dataset.range(140).map(changed_its_mind))
    assert len(one.pull(100).result(30.0)) == 100
    second = one.pull()
    wait_for(lambda: held.at(120), what="the call that takes long")
    taken = one.stage.take_partial_run()
    before = [int(row[0]) for row in taken]
    held.doors[120].set()
    second.result(30.0)
    assert len(taken) == 20
    assert [int(row[0]) for row in taken] == before


@pytest.mark.parametrize("wants", [(1,), (7,), (1000,)])
def test_errors_stand_in_their_places(bench: Make, wants: tuple[int, ...]) -> None:
    def yields() -> Iterator[int]:
        yield from range(10)
        raise KeyError("the generator's own")

    def odd(x: int) -> int:
        if x % 7 == 3:
            raise StopIteration
        return failing_at(20, 21)(x)

    for dataset in (
        Dataset.range(60).map(odd),
        Dataset.range(60).map(odd).map(failing_at(40)),
        Dataset.from_generator(yields),
        Dataset.from_generator(list),
        Dataset.range(0).map(odd),
    ):
        one = bench(dataset)
        assert one.in_place
        assert plain(drain(one.stage, wants)) == plain(run(dataset, wants))


def test_no_call_is_begun_once_it_is_cancelled(bench: Make) -> None:
    held = Held(2)
    one = bench(Dataset.range(50).map(held))
    first = one.pull()
    wait_for(lambda: held.at(2), what="the call that takes long")
    one.stage.cancel()
    held.doors[2].set()
    with pytest.raises(CancelledError):
        first.result(30.0)
    assert held.seen == [0, 1, 2]


def test_a_stage_that_calls_nothing_last_tells_nothing(bench: Make) -> None:
    held = Held()
    one = bench(Dataset.range(6).map(held).batch(3))
    assert not one.in_place
    assert one.stage.take_partial_run() == []
    assert plain(one.rest()) == [[0, 1, 2], [3, 4, 5]]

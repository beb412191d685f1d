"""What exists is handed on although the rest of its run takes long; nothing is lost, doubled or out of order for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dsnb.errors import CancelledError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import Stage, as_list
from tests.pipeline.driving import context, drain, failing_at, plain, run
from tests.support.waiting import wait_for


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("MainThread-")]


class Held:
    """A door before some elements, which a test opens one by one."""

    def __init__(self, *elements: int) -> None:
        self.doors = {element: threading.Event() for element in elements}
        self.seen: list[int] = []

    def __call__(self, x: Any) -> Any:
        self.seen.append(int(x))
        if int(x) in self.doors:
            self.doors[int(x)].wait(30.0)
        return x

    def generator(self, count: int) -> Callable[[], Iterator[int]]:
        return lambda: map(self, range(count))


@pytest.fixture
def prompt() -> Iterator[Callable[[Dataset], Stage]]:
    """Makes stages as a worker does; they are closed with the test."""
    stages: list[Stage] = []

    def build(dataset: Dataset) -> Stage:
        stages.append(dataset.operation.build(context(low_latency=True)))
        return stages[-1]

    yield build
    for stage in stages:
        stage.close()
    wait_for(lambda: not threads(), what="the threads to end")


def pulled(stage: Stage, count: int, want: int = 1000) -> list[Any]:
    """Exactly the next `count` elements, or a hang."""
    out: list[Any] = []
    while len(out) < count:
        out += as_list(stage.pull(want))
    assert len(out) == count
    return out


PIPELINES: dict[str, Callable[[Held], Dataset]] = {
    "map": lambda held: Dataset.range(100).map(held),
    "filter": lambda held: Dataset.range(100).filter(lambda x: held(x) >= 0),
    "generator": lambda held: Dataset.from_generator(held.generator(100)),
    "generator and more": lambda held: (
        Dataset.from_generator(held.generator(100)).map(lambda x: x + 1).filter(lambda x: x > 0).map(lambda x: x - 1)
    ),
    "map in the middle": lambda held: Dataset.range(100).map(held).enumerate().map(lambda _, x: x).prefetch(2),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_is_there_comes_though_the_next_element_does_not(prompt: Callable[[Dataset], Stage], name: str) -> None:
    held = Held(30, 31)
    stage = prompt(PIPELINES[name](held))
    try:
        assert plain(pulled(stage, 30)) == list(range(30))
        held.doors[30].set()
        assert plain(pulled(stage, 1)) == [30], "and again, without waiting for the one after it"
        held.doors[31].set()
        assert plain(drain(stage)) == list(range(31, 100))
        assert held.seen == list(range(100))
    finally:
        for door in held.doors.values():
            door.set()


def test_no_call_is_made_that_nobody_wants(prompt: Callable[[Dataset], Stage]) -> None:
    held = Held()
    assert plain(drain(prompt(Dataset.from_generator(held.generator(100)).map(lambda x: x).take(5)))) == [0, 1, 2, 3, 4]
    assert held.seen == [0, 1, 2, 3, 4]


def test_more_than_is_wanted_waits_for_the_next_pull(prompt: Callable[[Dataset], Stage]) -> None:
    held = Held(20)
    stage = prompt(Dataset.range(40).map(held))
    assert plain(pulled(stage, 20)) == list(range(20))
    held.doors[20].set()
    assert plain(drain(stage, [7, 1, 3])) == list(range(20, 40))


@pytest.mark.parametrize("wants", [(1,), (7,), (1000,)])
def test_errors_stand_in_their_places(wants: tuple[int, ...]) -> None:
    def odd(x: int) -> int:
        if x % 7 == 3:
            raise StopIteration if x % 2 else ValueError(x)
        return x

    def yields() -> Iterator[int]:
        yield from range(10)
        raise KeyError("the generator's own")

    for dataset in (
        Dataset.range(60).map(odd),
        Dataset.range(60).map(odd).map(failing_at(20)).filter(lambda x: x % 5 > 0 or 1 / (x - 40) > -10),
        Dataset.from_generator(yields),
        Dataset.from_generator(lambda: [1, "a", 3], element_spec=None).map(lambda x: x + 1),
    ):
        assert plain(run(dataset, wants, low_latency=True)) == plain(run(dataset, wants))


def test_all_calls_of_a_stage_are_made_on_one_thread(prompt: Callable[[Dataset], Stage]) -> None:
    """A database's cursor that a generator holds wants to stay on the thread that made it."""
    seen: list[str] = []

    def rows() -> Iterator[int]:
        try:
            for x in range(2000):
                seen.append(threading.current_thread().name)
                yield x
        finally:
            seen.append(threading.current_thread().name)

    stage = prompt(Dataset.from_generator(rows))
    for want in (1, 500, 1, 3):
        stage.pull(want)
    stage.close()
    assert len(set(seen)) == 1
    assert seen[0] != threading.current_thread().name


def test_what_was_handed_on_does_not_change_when_its_buffer_is_used_again(prompt: Callable[[Dataset], Stage]) -> None:
    """A function that was harmless so far is not looked at for each element, but its results are still kept apart."""
    gate, buffer = threading.Event(), np.zeros(1)

    def changed_its_mind(x: int) -> Any:
        if x < 100:
            return int(x)
        if x == 120:
            gate.wait(30.0)
        buffer[0] = x
        return buffer

    stage = prompt(Dataset.range(140).map(changed_its_mind))
    assert plain(pulled(stage, 100, want=100)) == list(range(100))
    rows = pulled(stage, 20)
    before = [int(row[0]) for row in rows]
    gate.set()
    drain(stage)
    assert [int(row[0]) for row in rows] == before


def test_cancelling_wakes_a_reader_though_user_code_goes_on(prompt: Callable[[Dataset], Stage]) -> None:
    held = Held(0)
    stage = prompt(Dataset.range(5).map(held))
    caught: list[BaseException] = []

    def read() -> None:
        try:
            stage.pull(5)
        except CancelledError as error:
            caught.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: held.seen, what="the call")
    stage.cancel()
    reader.join(5.0)
    assert not reader.is_alive()
    assert len(caught) == 1
    held.doors[0].set()
    stage.close()
    assert held.seen == [0], "no further call is made"


def test_a_generator_is_closed_when_it_lets_go(prompt: Callable[[Dataset], Stage]) -> None:
    begun, gate, over = threading.Event(), threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        try:
            yield 0
            begun.set()
            gate.wait(30.0)
            yield 1
        finally:
            over.set()

    def read_on() -> None:
        with pytest.raises(CancelledError):
            stage.pull(1)

    stage = prompt(Dataset.from_generator(slow))
    assert plain(pulled(stage, 1, want=1)) == [0]
    reader = threading.Thread(target=read_on)
    reader.start()
    assert begun.wait(30.0)
    stage.close()
    assert not over.is_set()
    gate.set()
    assert over.wait(30.0)
    reader.join()

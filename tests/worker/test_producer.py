"""The producer's thread, with real pipelines, and an outlet that keeps its frames."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dsnb.code.failures import exception_of
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.calls import InlineCalls
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.worker.processor_shares import JobPace
from dsnb.worker.producer import FRAME_BYTES, FRAME_ELEMENTS, FrameLimits, Producer
from tests.pipeline.driving import context, failing_at, plain
from tests.support.waiting import wait_for


class Shelf:
    """Takes frames as long as there is room for so many; see `dsnb.worker.producer.Outlet`."""

    def __init__(
        self, *, room: int = 1 << 30, frame_bytes: int = FRAME_BYTES, element_bytes: int = 1 << 60, burst_bytes: int = 0
    ) -> None:
        self.frames: list[Frame] = []
        self.on_their_way: list[int] = []
        self.ended = self.crowded = False
        self.room = room
        self.limits = FrameLimits(frame_bytes=frame_bytes, element_bytes=element_bytes, burst_bytes=burst_bytes)
        self.pace = JobPace()
        self.bursts: list[int] = []
        self._changed = threading.Condition()
        self._stopped = False

    def wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self.frames) < self.room)
            return not self._stopped

    def on_pulled(self, count: int) -> None:
        self.on_their_way.append(sum(frame.count for frame in self.frames) + count)

    def add(self, *frames: Frame) -> None:
        self.crowded |= len(self.frames) >= self.room
        self.frames += frames
        self.bursts.append(len(frames))

    def finish(self) -> None:
        self.ended = True

    def make_room(self, frames: int) -> None:
        with self._changed:
            self.room += frames
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def elements(self) -> list[Any]:
        """Everything that came, errors in their places."""
        out: list[Any] = []
        for frame in list(self.frames):
            out += [exception_of(frame.failure)] if frame.failure is not None else frame.elements(0, frame.count)
        return out


Produce = Callable[[Dataset, Shelf], Producer]


@pytest.fixture
def produce() -> Iterator[Produce]:
    """Starts producers that end with the test."""
    made: list[tuple[Producer, Shelf]] = []

    def start(dataset: Dataset, shelf: Shelf) -> Producer:
        producer = Producer("producer", lambda: dataset.operation.build(context()), shelf, "on w0", packed=False)
        made.append((producer, shelf))
        producer.start()
        return producer

    yield start
    for producer, shelf in made:
        shelf.stop()
        if producer.stage is not None:
            producer.stage.cancel()
        producer.join(10.0)
        assert not producer.is_alive()


def made_of(produce: Produce, dataset: Dataset, **settings: int) -> Shelf:
    """All that a pipeline gives."""
    shelf = Shelf(**settings)
    produce(dataset, shelf)
    wait_for(lambda: shelf.ended, what="the end of the pipeline")
    return shelf


def arrays(*sizes: int) -> Dataset:
    """Arrays of so many bytes each."""
    return Dataset.range(len(sizes)).map(lambda at: np.full(sizes[at], at % 256, np.uint8))


def test_all_elements_come_in_order(produce: Produce) -> None:
    shelf = made_of(produce, Dataset.range(50_000))
    assert plain(shelf.elements) == list(range(50_000))


def test_quick_small_elements_share_frames_of_a_bounded_number(produce: Produce) -> None:
    shelf = made_of(produce, Dataset.range(100_000))
    assert len(shelf.frames) < 1000
    assert max(frame.count for frame in shelf.frames) <= FRAME_ELEMENTS


def test_frames_are_not_larger_than_they_may_be(produce: Produce) -> None:
    shelf = made_of(produce, arrays(*[1000] * 300), frame_bytes=10_000)
    assert max(frame.nbytes for frame in shelf.frames) <= 10_000
    assert sum(frame.count for frame in shelf.frames) == 300


def test_frames_are_cut_where_elements_suddenly_get_larger(produce: Produce) -> None:
    shelf = made_of(produce, arrays(*[10] * 500, *[9000] * 20), frame_bytes=10_000)
    assert max(frame.nbytes for frame in shelf.frames) <= 10_000
    assert [len(element) for element in shelf.elements] == [10] * 500 + [9000] * 20


def test_an_element_that_is_larger_than_a_frame_has_one_of_its_own(produce: Produce) -> None:
    shelf = made_of(produce, arrays(10, 50_000, 10), frame_bytes=10_000)
    assert [frame.count for frame in shelf.frames if frame.nbytes > 10_000] == [1]
    assert [len(element) for element in shelf.elements] == [10, 50_000, 10]


def test_large_elements_that_come_quickly_are_added_several_at_once_in_frames_of_their_own(
    produce: Produce,
) -> None:
    shelf = made_of(produce, arrays(*[1000] * 300, 9000, *[1000] * 99), frame_bytes=1000, burst_bytes=4000)
    assert [int(element[0]) for element in shelf.elements] == [at % 256 for at in range(400)]
    assert {frame.count for frame in shelf.frames} == {1}
    assert max(shelf.bursts) == 4


def test_an_error_among_elements_that_are_added_several_at_once_keeps_its_place(produce: Produce) -> None:
    def make(at: int) -> np.ndarray:
        return np.zeros(1000 if at % 7 else 9000, np.uint8)

    shelf = made_of(produce, Dataset.range(100).map(make), frame_bytes=1000, element_bytes=8000, burst_bytes=4000)
    assert [isinstance(element, Exception) for element in shelf.elements] == [not at % 7 for at in range(100)]


def test_an_element_that_is_larger_than_the_cache_is_an_error_in_its_place(produce: Produce) -> None:
    shelf = made_of(produce, arrays(10, 50_000, 10), frame_bytes=1000, element_bytes=8000)
    first, error, last = shelf.elements
    assert isinstance(error, InvalidArgumentError)
    assert "the element size is larger than cache size in bytes (50,000 > 8,000)" in str(error)
    assert (len(first), len(last)) == (10, 10)


def test_errors_stand_in_their_elements_places(produce: Produce) -> None:
    shelf = made_of(produce, Dataset.range(300).map(failing_at(0, 7, 8, 299)))
    expected = ["RuntimeError" if number in (0, 7, 8, 299) else number for number in range(300)]
    assert plain(shelf.elements) == expected
    assert [shelf.elements[at].__notes__[-1] for at in (0, 8, 299)] == [f"on w0, element {at}" for at in (0, 8, 299)]


def test_elements_that_differ_from_the_first_are_errors_in_their_places(produce: Produce) -> None:
    odd: dict[int, Any] = {3: (1, 2), 50: "text", 120: None}
    shelf = made_of(produce, Dataset.range(150).map(lambda x: odd.get(int(x), int(x))))
    assert plain(shelf.elements) == ["InvalidArgumentError" if x in odd else x for x in range(150)]


class Refusing:
    """As a tensor that requires a gradient does."""

    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("no array of this")


class Unprintable(Exception):
    """An error whose own text cannot be had."""

    def __str__(self) -> str:
        raise LookupError("no text either")


def test_what_cannot_be_made_an_array_is_an_error_in_its_place_and_holds_nobody_up(produce: Produce) -> None:
    shelf = made_of(produce, Dataset.range(40).map(lambda x: Refusing() if x == 17 else int(x)))
    assert plain(shelf.elements) == [*range(17), "InvalidArgumentError", *range(18, 40)]
    assert "no array of this" in str(shelf.elements[17])


def test_an_error_that_cannot_be_printed_holds_nobody_up(produce: Produce) -> None:
    def unprintable(x: int) -> int:
        if x == 3:
            raise Unprintable
        return x

    shelf = made_of(produce, Dataset.range(6).map(unprintable))
    assert [type(element).__name__ for element in shelf.elements if isinstance(element, Exception)] == ["Unprintable"]
    assert len(shelf.elements) == 6


def test_text_is_of_any_length(produce: Produce) -> None:
    texts = ["a" * (n % 13) for n in range(100)]
    shelf = made_of(produce, Dataset.from_tensor_slices(np.array(texts)))
    assert shelf.elements == texts


class ArraysOfText(Stage):
    """Gives short and long text in one array."""

    def __init__(self) -> None:
        super().__init__("text")
        self._runs = [np.array(["a"] * 1000 + ["b" * 10_000])]

    def produce(self, want: int) -> Run:
        del want
        return self._runs.pop(0) if self._runs else []


@pytest.mark.parametrize("packed", [False, True])
def test_short_text_does_not_take_the_room_of_long_text_in_its_frame(packed: bool) -> None:
    shelf = Shelf()
    producer = Producer("producer", ArraysOfText, shelf, "on w0", packed=packed)
    producer.start()
    producer.join(30.0)
    assert shelf.ended
    assert shelf.elements == ["a"] * 1000 + ["b" * 10_000]
    assert {type(element) for element in shelf.elements} == {str}
    assert sum(frame.nbytes for frame in shelf.frames) < 100_000  # an array would have 40 KB for each text


def test_elements_that_are_ready_do_not_wait_for_a_slow_one(produce: Produce) -> None:
    gate = threading.Event()

    def slow_at_the_fourth(x: int) -> int:
        if x == 3:
            gate.wait(30.0)
        return x

    shelf = Shelf()
    produce(Dataset.range(5).map(slow_at_the_fourth), shelf)
    wait_for(lambda: len(shelf.elements) == 3, what="the three that are ready")
    gate.set()
    wait_for(lambda: shelf.ended, what="the end")
    assert plain(shelf.elements) == list(range(5))


def test_nothing_is_produced_that_nobody_wants(produce: Produce) -> None:
    calls: list[int] = []

    def count(x: int) -> np.ndarray[Any, Any]:
        calls.append(int(x))
        return np.zeros(1000, np.uint8)

    shelf = Shelf(room=2, frame_bytes=1000)
    produce(Dataset.range(1000).map(count), shelf)
    wait_for(lambda: len(shelf.frames) == 2, what="two frames")
    shelf.make_room(1)
    wait_for(lambda: len(shelf.frames) == 3, what="the third")
    assert len(calls) < 20


def test_each_frame_waits_for_room_also_those_of_one_run(produce: Produce) -> None:
    shelf = Shelf(room=1, frame_bytes=500)
    produce(arrays(*[10] * 200, *[400] * 40), shelf)
    for number in range(1, 30):
        wait_for(lambda count=number: len(shelf.frames) >= count, what="the next frame")
        shelf.make_room(1)
    assert not shelf.crowded


def test_a_producer_that_is_not_wanted_any_more_closes_its_pipeline_and_ends(produce: Produce) -> None:
    shelf = Shelf(room=1, frame_bytes=100)
    producer = produce(Dataset.range(10).repeat().prefetch(4), shelf)
    wait_for(lambda: shelf.frames, what="a frame")
    shelf.stop()
    producer.join(10.0)
    assert not producer.is_alive()
    assert producer.stage is not None
    assert not shelf.ended
    with pytest.raises(CancelledError):
        producer.stage.pull(1)


def test_it_tells_up_to_where_what_was_made_will_be(produce: Produce) -> None:
    """So that splits count as done when their elements are consumed, and not before."""
    shelf = made_of(produce, Dataset.range(5000).map(failing_at(40)))
    assert shelf.on_their_way == sorted(shelf.on_their_way)
    assert shelf.on_their_way[-1] == 5000


def test_what_a_run_has_is_handed_on_although_it_began_late(produce: Produce, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the machine is busy, or the source is slow: the run was looked at before its first call."""
    gate, looks, last = threading.Event(), list[bool](), 0
    make, take = InlineCalls.run_calls, InlineCalls.take_partial_run

    def begins_late(calls: InlineCalls, run: list[Any]) -> tuple[int, list[Any], BaseException | None]:
        if 5001 in run:
            looks.clear()
            wait_for(lambda: looks, what="somebody to look")
        return make(calls, run)

    def noted(calls: InlineCalls) -> list[Any] | None:
        found = take(calls)
        looks.append(True)
        return found

    def slow_in_a_long_run(x: int) -> int:
        nonlocal last
        last = int(x)
        if x == 5001:
            gate.wait(30.0)
        return int(x)

    monkeypatch.setattr(InlineCalls, "run_calls", begins_late)
    monkeypatch.setattr(InlineCalls, "take_partial_run", noted)
    shelf = Shelf()
    produce(Dataset.range(6000).map(slow_in_a_long_run), shelf)
    wait_for(lambda: sum(frame.count for frame in shelf.frames) == 5001, what="all that are ready")
    assert last == 5001
    gate.set()
    wait_for(lambda: shelf.ended, what="the end")
    assert plain(shelf.elements) == list(range(6000))


def test_what_a_run_has_is_handed_on_although_its_next_element_never_comes(produce: Produce) -> None:
    gate, threads = threading.Event(), set[int]()

    def slow_in_a_long_run(x: int) -> int:
        threads.add(threading.get_ident())
        if x == 5001:
            gate.wait(30.0)
        return int(x)

    shelf = Shelf()
    produce(Dataset.range(6000).map(slow_in_a_long_run), shelf)
    wait_for(lambda: sum(frame.count for frame in shelf.frames) == 5001, what="all that are ready")
    gate.set()
    wait_for(lambda: shelf.ended, what="the end")
    assert plain(shelf.elements) == list(range(6000))
    assert len(threads) == 1

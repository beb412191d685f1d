"""A task with a real pipeline and its own threads, read as a client in this process reads it."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dsnb.cache.opened_files import FileState, OpenedFiles, first_change
from dsnb.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
    is_out_of_band,
)
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.file_datasets import TextLineDataset
from dsnb.pipeline.split_order import UnitStage
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.messages import LostReader, SplitsReply, SplitsRequest, TaskOrder, TaskPosition
from dsnb.wire.schedule import consumer_name
from dsnb.worker.retry_policy import RetryPolicy
from dsnb.worker.sessions import ReaderSession
from dsnb.worker.splits import DispatcherFeed
from dsnb.worker.task import Task
from tests.pipeline.driving import Rooms, context, failing_at, plain, run
from tests.support.overwriting import overwrite
from tests.support.waiting import standing_still, wait_for
from tests.worker.collecting import UNLIMITED, Collector, opening

Make = Callable[..., Task]


class Listening(Collector):
    """Also keeps the states of opened files."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[FileState] = []
        self.told_before: list[int] = []
        """For each piece, how many files were known before it."""

    def deliver(self, piece: FrameSlice) -> None:
        self.told_before.append(len(self.states))
        super().deliver(piece)

    def note_files(self, states: str) -> None:
        self.states += [(how, path, state) for how, path, state in json.loads(states)]

    @property
    def told(self) -> list[str]:
        return sorted(path for _, path, _ in self.states)


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes tasks that end with the test."""
    made: list[Task] = []

    def task(
        dataset: Dataset | Callable[[Any], Stage],
        *,
        cached: bool = False,
        consumers: int = 0,
        position: TaskPosition | None = None,
        feed: DispatcherFeed | None = None,
        **changes: Any,
    ) -> Task:
        build = (
            (lambda room: dataset.operation.build(replace(context(low_latency=True), allocate=room)))
            if isinstance(dataset, Dataset)
            else dataset
        )
        order = TaskOrder(
            task_id="t",
            job_name="train",
            incarnation=3,
            mode="OFF",
            cached=cached,
            num_consumers=consumers,
            position=position,
        )
        settings: dict[str, Any] = {
            "read_ahead_bytes": 1 << 20,
            "capacity": 1 << 20,
            "on_change": lambda: None,
            "on_end": lambda: None,
            "error_context": "on w0",
        }
        made.append(Task(order, build, feed, **{**settings, **changes}))
        return made[-1]

    yield task
    for task_ in made:
        task_.stop(UnavailableError("the test is over"))
        assert task_.join(10.0)


def numbers(count: int) -> Dataset:
    return Dataset.range(count)


def test_nothing_is_produced_before_the_first_read(make: Make) -> None:
    task = make(lambda _room: pytest.fail("the pipeline was built"))
    assert task.report().state == "pending"
    assert task.report().head == 0


@pytest.fixture(autouse=True)
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers here hold what they like, though they consume nothing; see `test_take_over` for their fair shares."""
    monkeypatch.setattr("dsnb.worker.shared_log.FIRST_GRANT", 64)


def test_a_reader_gets_what_its_credit_allows(make: Make) -> None:
    task, sink = make(numbers(100)), Collector()
    reading = task.open(opening(granted=10), sink)
    assert plain(sink.wait_for(10)) == list(range(10))
    reading.credit(30, 10, UNLIMITED)
    assert plain(sink.wait_for(30)) == list(range(30))
    reading.credit(UNLIMITED, 30, UNLIMITED)
    assert plain(sink.wait_for_end()) == list(range(100))


def test_a_reader_that_asks_is_told_of_the_files_before_the_elements(make: Make, tmp_path: Path) -> None:
    names = [str(tmp_path / str(number)) for number in range(5)]
    for name in names:
        Path(name).write_text("line\n")
    opened = OpenedFiles()
    lines = Dataset.from_tensor_slices(names).flat_map(TextLineDataset)
    stage = replace(context(low_latency=True), opened_files=opened)
    task = make(lambda room: lines.operation.build(replace(stage, allocate=room)), opened_files=opened, cached=True)
    for trainer in ("first", "second"):  # the second one reads what is there already
        sink = Listening()
        task.open(opening(client=trainer, trainer=trainer, granted=UNLIMITED, want_files=True), sink)
        assert len(sink.wait_for_end()) == 5
        assert sink.told == sorted(names)
        assert all(told >= piece.index + piece.count for told, piece in zip(sink.told_before, sink.pieces, strict=True))
    deaf = Listening()
    task.open(opening(client="deaf", trainer="third", granted=UNLIMITED), deaf)
    deaf.wait_for_end()
    assert deaf.told == []


def test_a_task_keeps_only_so_many_files(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsnb.worker.task.MOST_ON_WORKER", 3)
    monkeypatch.setattr("dsnb.worker.task._FILES_PER_MESSAGE", 2)
    opened, sink = OpenedFiles(), Listening()
    task = make(numbers(5).map(lambda n: opened.add(f"/nowhere/{min(n, 3)}", None) or n), opened_files=opened)
    task.open(opening(granted=UNLIMITED, want_files=True), sink)
    assert plain(sink.wait_for_end()) == list(range(5))
    assert sink.told == ["", "/nowhere/0", "/nowhere/1", "/nowhere/2"]
    told = OpenedFiles()
    told.add_from_worker(sink.states)
    assert "files, too many to compare" in first_change(told.states("strict"))


def test_a_peek_waits_for_an_element_if_readers_have_consumed_all(make: Make) -> None:
    gate = threading.Event()
    task, sink = make(numbers(3).map(lambda n: n if n < 1 or gate.wait(30) else -1)), Collector()
    reading = task.open(opening(granted=10), sink)
    sink.wait_for(1)
    reading.credit(10, 1, UNLIMITED)
    with ThreadPoolExecutor(1) as pool:
        peek = pool.submit(task.newest_frames, 4, 30.0)
        wait_for(lambda: task.debug_state()["awaited"] or peek.done(), what="the peek to wait")
        assert not peek.done()
        gate.set()
        [(index, frame)] = peek.result(30)
    assert (index, plain(frame.elements(0, 1))) == (1, [1])
    assert plain(sink.wait_for_end()) == [0, 1, 2]
    assert not task.debug_state()["awaited"]


@pytest.mark.parametrize("end", ["the data end", "the task is stopped"])
def test_a_peek_that_waits_ends_with_its_task(make: Make, end: str) -> None:
    gate = threading.Event()
    task, sink = make(numbers(1).filter(lambda _: not gate.wait(30))), Collector()
    task.open(opening(granted=10), sink)
    with ThreadPoolExecutor(1) as pool:
        peek = pool.submit(task.newest_frames, 4, 600.0)
        wait_for(lambda: task.debug_state()["awaited"], what="the peek to wait")
        if end == "the task is stopped":
            task.stop(UnavailableError("the worker stops"))
        else:
            gate.set()
        assert not peek.result(30)
        gate.set()
    assert not task.newest_frames(4, 600.0)


def test_pieces_say_where_they_belong(make: Make) -> None:
    task, sink = make(numbers(60)), Collector()
    task.open(opening(granted=7), sink).credit(UNLIMITED, 0, UNLIMITED)
    sink.wait_for_end()
    places = [(piece.index, piece.count, piece.incarnation) for piece in sink.pieces]
    assert [index for index, _, _ in places] == [sum(count for _, count, _ in places[:at]) for at in range(len(places))]
    assert {incarnation for _, _, incarnation in places} == {3}


def test_credit_that_is_not_used_can_be_recalled(make: Make) -> None:
    task, sink = make(numbers(5)), Collector()
    reading = task.open(opening(granted=100), sink)
    sink.wait_for(5)
    reading.recall()
    assert sink.recalls == [5]


def test_readers_without_a_cache_share_what_there_is(make: Make) -> None:
    task, first, second = make(numbers(100)), Collector(), Collector()
    task.open(opening("a", granted=30), first)
    first.wait_for(30)
    wait_for(lambda: task.debug_state()["finished"], what="all to be produced")
    reading = task.open(opening("b"), second)
    assert second.count <= 35, "more than half of what is left went to one of two readers"
    wait_for(lambda: read_on(reading, second), what="the end")
    assert plain(second.elements) == list(range(30, 100))


def read_on(reading: ReaderSession, sink: Collector) -> bool:
    """Consume all that has come; whether that is all."""
    reading.credit(UNLIMITED, sink.count, UNLIMITED)
    return bool(sink.ends)


def test_what_a_reader_leaves_unread_is_for_the_others(make: Make) -> None:
    task, first, second = make(numbers(50)), Collector(), Collector()
    reading = task.open(opening("a", granted=30), first)
    first.wait_for(30)
    reading.leave(10)
    task.open(opening("b"), second)
    assert plain(second.wait_for_end()) == list(range(10, 50))


def test_a_reader_that_waits_is_given_at_once_what_another_one_leaves(make: Make) -> None:
    gate = threading.Event()

    def held_at_the_thirtieth(x: int) -> int:
        if x == 30:
            gate.wait(30.0)
        return x

    task, first, second = make(numbers(50).map(held_at_the_thirtieth)), Collector(), Collector()
    reading = task.open(opening("a"), first)
    first.wait_for(30)
    task.open(opening("b"), second)
    assert second.count == 0
    reading.leave(10)
    assert plain(second.elements) == list(range(10, 30))
    gate.set()


def test_trainers_of_a_cached_task_all_get_all(make: Make) -> None:
    task = make(numbers(100).repeat(), cached=True)
    sinks = {name: Collector() for name in ("a", "b")}
    for name, sink in sinks.items():
        task.open(opening(f"client of {name}", name, granted=250), sink)
        assert plain(sink.wait_for(250)) == [*range(100), *range(100), *range(50)]
    report = {trainer.trainer_id: trainer for trainer in task.report().trainers}
    assert report.keys() == {"a", "b"}


def test_a_cached_task_wants_to_know_who_reads(make: Make) -> None:
    task = make(numbers(10).repeat(), cached=True)
    with pytest.raises(InvalidArgumentError, match="requires a non-empty trainer ID"):
        task.open(opening(), Collector())


def test_a_cached_task_whose_data_ends_has_all_of_it_for_each_trainer(make: Make) -> None:
    task = make(numbers(5), cached=True)
    for trainer in "ab":
        sink = Collector()
        reading = task.open(opening(trainer, trainer=trainer), sink)
        assert plain(sink.wait_for_end()) == list(range(5))
        reading.credit(UNLIMITED, 5, UNLIMITED)
    assert task.done
    assert not task.report().closing


def test_a_cached_task_asks_at_once_before_its_beginning_goes(make: Make) -> None:
    told: list[bool] = []
    task: Task = make(numbers(5000), cached=True, capacity=4000, on_change=lambda: told.append(task.report().closing))
    sink = Collector()
    reading = task.open(opening("a", trainer="a"), sink)

    def read_on() -> bool:
        reading.credit(UNLIMITED, sink.count, UNLIMITED)
        return bool(told)

    wait_for(read_on, what="the question whether elements may go")
    assert told == [True]
    assert task.report().evicted == 0
    task.close_to_new_trainers([])
    wait_for(lambda: bool(read_on() and task.report().state == "ended"), what="the end")
    assert task.report().evicted > 0


def test_an_error_stands_in_its_elements_place_with_a_note_of_where_it_happened(make: Make) -> None:
    task, sink = make(numbers(4).map(failing_at(2))), Collector()
    task.open(opening(), sink)
    got = sink.wait_for_end()
    assert plain(got) == [0, 1, "RuntimeError", 3]
    assert got[2].__notes__[-1] == "on w0, element 2"
    assert task.report().errors == 1


def test_a_pipeline_that_cannot_be_built_is_told_and_over(make: Make) -> None:
    def broken(_room: Any) -> Stage:
        raise LookupError("the blob is gone")

    task, sink = make(broken), Collector()
    task.open(opening(), sink)
    [error] = sink.wait_for_end()
    assert repr(error) == "LookupError('the blob is gone')"


def test_the_end_is_reported_when_all_is_consumed_and_not_before(make: Make) -> None:
    ended: list[bool] = []
    task: Task = make(numbers(20), on_end=lambda: ended.append(task.done))
    sink = Collector()
    reading = task.open(opening(), sink)
    sink.wait_for_end()
    assert task.report().state == "ended"
    assert (ended, task.done) == ([], False)
    reading.credit(UNLIMITED, 19, UNLIMITED)
    assert (ended, task.done) == ([], False)
    reading.credit(UNLIMITED, 20, UNLIMITED)
    reading.leave(20)
    assert (ended, task.done) == ([True], True)


def test_what_a_reader_did_not_consume_keeps_a_task_from_being_done(make: Make) -> None:
    task, sink = make(numbers(20)), Collector()
    reading = task.open(opening(), sink)
    sink.wait_for_end()
    reading.leave(12)
    assert not task.done
    task.open(opening("heir"), heir := Collector()).leave(8)
    assert plain(heir.elements) == list(range(12, 20))
    assert task.done


def test_the_same_client_may_open_again_and_its_old_reading_ends(make: Make) -> None:
    task, old, new = make(numbers(50)), Collector(), Collector()
    before = task.open(opening(granted=20), old)
    old.wait_for(20)
    task.open(opening(granted=20, received=12, consumed=5), new)
    assert isinstance(old.errors[0], CancelledError)
    assert plain(new.wait_for(8)) == list(range(12, 20)), "what was on its way was not sent again"
    before.credit(50, 20, UNLIMITED)
    before.recall()
    before.leave(20)
    assert (new.count, new.recalls, old.recalls) == (8, [], [])
    assert task.report().readers == 1


def test_an_opening_that_is_handled_late_does_not_end_the_one_after_it(make: Make) -> None:
    task, new, late = make(numbers(50)), Collector(), Collector()
    reading = task.open(opening(granted=20, opening=2), new)
    with pytest.raises(CancelledError):
        task.open(opening(granted=20, opening=1), late)
    reading.credit(50, 20, UNLIMITED)
    assert plain(new.wait_for_end()) == list(range(50))
    assert (new.errors, late.count) == ([], 0)


def test_the_dispatcher_can_take_a_client_off_that_it_lost(make: Make) -> None:
    task, gone, other = make(numbers(50)), Collector(), Collector()
    task.open(opening("gone", granted=20), gone)
    gone.wait_for(20)
    task.leave("gone")
    task.leave("never there")
    task.open(opening("other"), other)
    assert plain(other.wait_for_end()) == list(range(50))


def test_what_a_rejoined_client_consumed_is_neither_sent_nor_counted_again_however_often_it_says_so(make: Make) -> None:
    task, first, broken, second = make(numbers(50)), Collector(), Collector(), Collector()
    task.open(opening("lost", granted=20), first)
    first.wait_for(20)
    task.leave("lost", 0, died=True)
    again = {"consumed_before": (0, 20), "consumed_before_count": 20, "previous_client_id": "lost"}
    task.open(opening("rejoined", granted=0, **again), broken)
    task.open(opening("rejoined", **again), second)
    assert plain(second.wait_for_end()) == list(range(20, 50))
    assert task.report().repeated == 0


def test_the_report_says_what_each_lost_client_is_known_to_have_consumed(make: Make) -> None:
    task, sink = make(numbers(50)), Collector()
    session = task.open(opening("lost", granted=20), sink)
    task.open(opening("left", granted=0), Collector())
    sink.wait_for(20)
    session.credit(20, 7, 1 << 20)
    task.leave("left")
    task.leave("lost", died=True)
    task.leave("lost", died=True)
    task.leave("another job's", died=True)
    assert task.report().lost_readers == (LostReader(client_id="lost", consumed=7),)
    assert task.drop().lost_readers == (LostReader(client_id="lost", consumed=7),)


def test_a_stopped_task_tells_its_readers_why_and_takes_no_new_ones(make: Make) -> None:
    task, sink = make(numbers(10).repeat()), Collector()
    task.open(opening(granted=5), sink)
    sink.wait_for(5)
    task.stop(UnavailableError("the worker was stopped"))
    task.stop(UnavailableError("and again"))
    assert [str(error) for error in sink.errors] == ["the worker was stopped"]
    with pytest.raises(UnavailableError, match="the task t was stopped"):
        task.open(opening("late"), Collector())
    assert task.join(10.0)


def test_a_task_that_is_stopped_while_it_seeks_its_position_has_not_ended(make: Make) -> None:
    held, began = threading.Event(), threading.Event()

    def hold(x: int) -> int:
        began.set()
        held.wait(10.0)
        return x

    slow = Dataset.range(20).map(hold).shuffle(4, seed=1)  # a shuffle cannot skip: it makes the elements again
    task = make(slow, position=TaskPosition(skip=10))
    task.open(opening(granted=5), Collector())
    assert began.wait(10.0)
    task.stop(UnavailableError("the worker was stopped"))
    held.set()
    assert task.join(10.0)
    report = task.drop()
    assert (report.exhausted, report.missing_elements, task.done) == (False, 0, False)


def test_a_task_that_seeks_its_position_waits_for_the_dispatcher_and_gives_every_element_then(make: Make) -> None:
    """An error that ended the search would be delivered as the task's only element."""
    back = threading.Event()

    def answer(request: SplitsRequest) -> SplitsReply:
        return SplitsReply(first=request.cursor, end=request.cursor + 1, done=request.cursor == 20)

    def ask(request: SplitsRequest) -> SplitsReply:
        if request.cursor >= 4 and not back.is_set():
            raise UnavailableError("no server answers at host:1")
        return answer(request)

    retry = RetryPolicy(
        seconds=0.05,
        on_overdue=lambda error: task.fail_readers(error),  # noqa: PLW0108 - the task is made below
        given_up=lambda: False,
        connected=lambda: False,
    )
    feed = DispatcherFeed("t", 1, lambda request: retry(lambda: ask(request)))
    made = Dataset.range(20).map(lambda x: x).shuffle(4, seed=1)  # a shuffle cannot skip: it makes the elements again
    task = make(
        lambda room: made.operation.build(replace(context(splits=feed, low_latency=True), allocate=room)),
        position=TaskPosition(skip=10),
    )
    told, sink = Collector(), Collector()
    task.open(opening(), told)
    error = told.wait_for_error()
    assert isinstance(error, DeadlineExceededError)
    assert is_out_of_band(error)
    assert not task.has_connected_readers
    back.set()
    task.open(opening(), sink)  # its user calls `next` again
    assert plain(sink.wait_for_end()) == plain(run(made, splits=DispatcherFeed("t", 1, answer)))[10:]
    assert (told.count, task.report().errors) == (0, 0)


def test_a_task_whose_turn_has_not_come_keeps_whole_units_ready(make: Make) -> None:
    def ask(request: SplitsRequest) -> SplitsReply:
        first = request.cursor
        return SplitsReply(first=first, end=first + min(request.want, 4))

    feed = DispatcherFeed("t", 1, ask)
    made = Dataset.range(1 << 40).map(lambda _: np.zeros(400 << 10, np.uint8))
    task = make(
        lambda room: UnitStage(made.operation, replace(context(splits=feed), allocate=room)),
        feed=feed,
        read_ahead_bytes=8 << 20,
    )
    task.open(opening(granted=10), Collector())
    # Beyond the ten, four units of four elements each. For a reader that takes what comes first it would be 128 KiB.
    wait_for(lambda: task.report().head >= 26, what="four units to be ready")
    wait_for(standing_still(lambda: task.report().head, 0.2), what="the producer to stop")
    assert task.report().head <= 34, "8 MiB are the most that it may produce ahead"


def test_a_dropped_task_forgets_its_frames_and_nothing_of_what_it_told(make: Make) -> None:
    task, sink = (
        make(Dataset.range(1 << 40).map(lambda n: np.full(1 << 12, n % 251, np.uint8)), cached=True),
        Collector(),
    )
    task.open(opening(trainer="a", granted=50), sink)
    sink.wait_for(50)
    kept = [weakref.ref(piece.frame) for piece in sink.pieces]
    before = task.report()
    assert before.head >= 50
    task.stop(UnavailableError("the job was cancelled"))
    dropped = task.drop()
    sink.pieces.clear()
    wait_for(lambda: not any(frame() for frame in kept), what="the window's frames to go")
    assert task.report() == dropped
    assert dropped.head >= before.head, "it may have gone on until it was dropped"


def test_a_task_that_was_never_read_can_be_stopped(make: Make) -> None:
    task = make(numbers(5))
    task.stop(UnavailableError("stopped"))
    assert task.join(0.0)


def test_stopping_does_not_wait_for_user_code_that_does_not_return(make: Make) -> None:
    held, began = threading.Event(), threading.Event()

    def hold(x: Any) -> Any:
        began.set()
        held.wait(30.0)
        return x

    task = make(numbers(5).map(hold))
    task.open(opening(), Collector())
    assert began.wait(10.0)
    task.stop(UnavailableError("stopped"))
    assert not task.join(0.05)
    held.set()
    assert task.join(10.0)


def test_a_task_produces_no_more_than_it_may_ahead_of_its_readers(make: Make) -> None:
    task, sink = make(numbers(10).repeat(), read_ahead_bytes=1000), Collector()
    task.open(opening(granted=1), sink)
    sink.wait_for(1)
    wait_for(lambda: task.report().window_bytes >= 1000, what="the producer to come to its bound")
    assert task.report().window_bytes < 1000 + (1 << 20), "a frame more than the bound"


@pytest.mark.slow
def test_a_cached_task_stays_within_its_part_of_the_budget_also_when_it_gets_smaller(make: Make) -> None:
    task, sink = make(numbers(10).repeat(), cached=True, capacity=64_000), Collector()
    task.close_to_new_trainers([])
    reading = task.open(opening(trainer="a", granted=0), sink)

    def read_on(goal: int) -> bool:
        reading.credit(goal, sink.count, UNLIMITED)
        return sink.count >= goal

    for number, budget in enumerate((64_000, 8_000)):
        task.resize(budget)
        wait_for(lambda goal=20_000 * (number + 1): read_on(goal), what="20,000 elements")
        report = task.report()
        assert (report.capacity_bytes, report.window_bytes <= budget) == (budget, True)
    assert task.report().evicted > 0


def test_a_task_that_has_ended_gives_bytes_back_as_soon_as_nobody_new_may_want_them(make: Make) -> None:
    told: list[bool] = []
    settings: dict[str, Any] = {"capacity": 64_000, "on_change": lambda: told.append(task.report().closing)}
    task: Task = make(numbers(4000), cached=True, **settings)
    sink = Collector()
    reading = task.open(opening("a", trainer="a"), sink)

    def read_on() -> bool:
        reading.credit(UNLIMITED, sink.count, UNLIMITED)
        return task.done

    wait_for(read_on, what="the end")
    before = task.report()
    assert (before.closing, before.window_bytes) == (False, 32_000)
    task.resize(9_000)
    assert task.report().window_bytes == 32_000
    assert told == [True]  # when the first elements had to go
    task.close_to_new_trainers([])
    assert 0 < task.report().window_bytes <= 9_000


def test_a_report_adds_up(make: Make) -> None:
    task, sink = make(numbers(30).map(lambda x: x + 1)), Collector()
    reading = task.open(opening(), sink)
    sink.wait_for_end()
    reading.credit(UNLIMITED, 20, UNLIMITED)
    report = task.report()
    assert (report.head, report.sent_elements, report.sent_bytes) == (30, 30, 240)
    [trainer] = report.trainers
    assert (trainer.trainer_id, trainer.clients, trainer.consumed, trainer.offset) == ("", 1, 20, 20)
    assert [stage.elements for stage in report.stages] == [30, 30]
    assert report.splits_done == ()
    assert task.drop().state == "dropped"


class Roomy(Collector):
    """A reader that sees what is laid out in its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Rooms()

    def allocate(self, nbytes: int) -> Any:
        return self.memory(nbytes)


def large_rows(size: int, may_begin: threading.Event | None = None) -> Dataset:
    def row(x: int) -> Any:
        assert may_begin is None or may_begin.wait(10.0)
        return np.full(1 << 18, x, np.uint8)

    return Dataset.range(8).map(row).batch(size)


@pytest.mark.parametrize("size, alone", [(4, True), (2, False)])
def test_a_batch_that_is_a_frame_of_its_own_is_laid_out_in_its_readers_memory(
    make: Make, size: int, alone: bool
) -> None:
    both_are_open = threading.Event()
    task = make(large_rows(size, both_are_open), packed=True, read_ahead_bytes=1)
    sink, other = Roomy(), Collector()
    task.open(opening("other", granted=0), other)
    task.open(opening(), sink)
    both_are_open.set()
    got = sink.wait_for_end()
    assert [batch[:, 0].tolist() for batch in got] == np.arange(8).reshape(-1, size).tolist()
    assert len(sink.memory.pieces) == (8 // size if alone else 0)
    assert sink.memory.hold(*got) == alone


class Consumer(Collector):
    """A reader that takes part in a coordinated read."""

    def progress(self, whole: int, base: int) -> None:
        """Turns are whole."""


@pytest.mark.parametrize("shape", [(28, 28), (256, 512)], ids=str)
def test_a_consumer_that_comes_again_gets_what_was_produced_whatever_the_one_before_wrote(
    make: Make, shape: tuple[int, ...]
) -> None:
    dataset = Dataset.range(1 << 40).map(lambda number: np.full(shape, int(number) + 1, np.uint8))
    task = make(dataset, consumers=2, read_ahead_bytes=1 << 18)
    first, other, again = Consumer(), Consumer(), Consumer()
    task.open(opening("other", consumer_name(1), granted=3), other)
    task.open(opening("first", consumer_name(0), granted=3), first)
    for element in first.wait_for(3):
        overwrite(element)
    task.leave("first")
    task.open(opening("again", consumer_name(0), granted=3), again)
    assert [(x.min(), x.max()) for x in again.wait_for(3)] == [(1, 1), (3, 3), (5, 5)]
    assert [(x.min(), x.max()) for x in other.wait_for(3)] == [(2, 2), (4, 4), (6, 6)]


@pytest.mark.parametrize("shape", [(), (28, 28), (256, 512)], ids=str)
def test_a_reader_without_others_gets_what_the_pipeline_made_and_readers_that_share_get_copies(
    make: Make, shape: tuple[int, ...]
) -> None:
    made: list[Any] = []

    def element(number: Any) -> Any:
        made.append(np.full(shape, number, np.uint8) if shape else number)
        return made.pop()

    alone, other, third = Collector(), Collector(), Collector()
    make(Dataset.range(6).map(element)).open(opening(), alone)
    task = make(Dataset.range(6).map(element), cached=True, capacity=1 << 22)
    task.open(opening("other", "other"), other)
    task.open(opening("third", "third"), third)
    elements = [sink.wait_for_end() for sink in (alone, other, third)]
    assert all([int(np.max(x)) for x in found] == list(range(6)) for found in elements)
    if shape:
        for frame, found in ((piece.frame, piece.elements()) for piece in alone.pieces):
            assert all(map(np.shares_memory, found, frame.columns[0].values))
        for one in elements[1]:
            assert not any(np.shares_memory(one, another) for another in elements[2])
            assert not any(np.shares_memory(one, piece.frame.columns[0].values[0]) for piece in other.pieces)
            assert not one.flags.writeable

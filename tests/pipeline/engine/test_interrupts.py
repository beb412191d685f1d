"""While an iterator pulls, dsnb handles SIGINT; before and after, and for everybody else, nothing changes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.interrupts import INTERRUPTS
from tests.support.waiting import standing_still, wait_for


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """The signals that the user's own handler has received; it raises nothing."""
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGINT, before)


def interrupt_in_own_code() -> None:
    """Ctrl-C while dsnb's own code runs."""
    exec("import signal; signal.raise_signal(signal.SIGINT)", {"__name__": "dsnb.pipeline.engine.stage"})


def test_the_handler_is_the_users_again_after_each_next(seen: list[int]) -> None:
    mine = signal.getsignal(signal.SIGINT)
    during: list[Any] = []

    def look(x: int) -> int:
        during.append(signal.getsignal(signal.SIGINT))
        if x == 1:
            raise ValueError(x)
        return x

    elements = iter(Dataset.range(3).map(look))
    next(elements)
    assert signal.getsignal(signal.SIGINT) is mine
    with pytest.raises(ValueError, match="1"):
        next(elements)
    assert signal.getsignal(signal.SIGINT) is mine
    assert during[0] != mine
    assert [int(x) for x in elements] == [2]


def test_an_interrupt_of_user_code_comes_at_once(seen: list[int]) -> None:
    found: list[int] = []

    def press(x: int) -> int:
        signal.raise_signal(signal.SIGINT)
        found.append(len(seen))
        return x

    assert len(list(Dataset.range(2).map(press))) == 2
    assert found == [1, 2]


def test_an_interrupt_of_own_code_comes_at_the_end_of_the_pull(seen: list[int]) -> None:
    with INTERRUPTS:
        interrupt_in_own_code()
        assert not seen
    assert seen == [signal.SIGINT]


def test_the_second_of_two_interrupts_is_not_delayed(seen: list[int]) -> None:
    with INTERRUPTS:
        interrupt_in_own_code()
        assert not seen
        interrupt_in_own_code()
        assert seen == [signal.SIGINT] * 2


def test_an_interrupt_in_a_call_whose_answer_counts_comes_after_it(seen: list[int]) -> None:
    with INTERRUPTS:
        with INTERRUPTS.delayed_in_waits():
            signal.raise_signal(signal.SIGINT)
            assert not seen
        INTERRUPTS.raise_pending()
        assert seen == [signal.SIGINT]


def test_an_error_of_the_pull_is_the_context_of_a_delayed_interrupt() -> None:
    def fail() -> None:
        interrupt_in_own_code()
        raise ValueError("the error of an element")

    with pytest.raises(KeyboardInterrupt) as raised, INTERRUPTS:
        fail()
    assert isinstance(raised.value.__context__, ValueError)
    with INTERRUPTS:
        pass  # nothing is pending any more


def test_an_interrupt_is_delayed_for_a_short_time_only(seen: list[int]) -> None:
    """A function without Python code looks like dsnb's own, also if it waits."""
    with INTERRUPTS:
        interrupt_in_own_code()
        wait_for(lambda: bool(seen), what="the delayed interrupt")
    assert seen == [signal.SIGINT], "one Ctrl-C is one call of the handler"


def test_a_function_without_python_code_can_be_interrupted() -> None:
    began = threading.Event()
    clock = time.pthread_getcpuclockid(threading.get_ident())

    def press() -> None:
        began.wait(60.0)
        # A signal that comes after Python looked for one and before the kernel waits interrupts nothing.
        wait_for(standing_still(lambda: time.clock_gettime(clock), 0.1), what="the main thread to wait")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    elements = iter(Dataset.range(1).map(lambda x: began.set() or (30.0,)).map(time.sleep))
    thread = threading.Thread(target=press)
    thread.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(elements)
    assert time.monotonic() - started < 30.0, "it was interrupted, and did not just return"
    thread.join()
    elements.close()


def test_a_handler_that_a_function_puts_before_the_present_one_is_called_once(seen: list[int]) -> None:
    chained: list[int] = []

    def install(x: int) -> int:
        if x == 0:
            before = signal.getsignal(signal.SIGINT)
            assert callable(before)
            signal.signal(signal.SIGINT, lambda *told: (chained.append(1), before(*told)))
        return x

    assert len(list(Dataset.range(3).map(install))) == 3
    assert len(list(Dataset.range(3).map(lambda x: (x == 1 and signal.raise_signal(signal.SIGINT)) or x))) == 3
    assert (chained, seen) == ([1], [signal.SIGINT])


def test_the_handler_of_a_pull_that_other_code_installs_again_later_passes_interrupts_on(seen: list[int]) -> None:
    kept: list[Any] = []
    list(Dataset.range(2).map(lambda x: kept.append(signal.getsignal(signal.SIGINT)) or x))
    signal.signal(signal.SIGINT, kept[0])
    signal.raise_signal(signal.SIGINT)
    assert len(list(Dataset.range(2).map(lambda x: signal.raise_signal(signal.SIGINT) or x))) == 2
    assert seen == [signal.SIGINT] * 3


class Stop(Exception):
    """What a handler raises instead of `KeyboardInterrupt`."""


@pytest.fixture
def stopping() -> Iterator[None]:
    """A handler of the user that raises an exception of its own."""

    def stop(*_: Any) -> None:
        raise Stop

    before = signal.signal(signal.SIGINT, stop)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_a_handler_raises_between_elements_takes_the_place_of_none(stopping: None) -> None:
    elements = iter(Dataset.range(4).shard(2, 0).ignore_errors())
    with pytest.raises(Stop), INTERRUPTS:
        interrupt_in_own_code()
    assert [int(x) for x in elements] == [0, 2]


def test_what_a_handler_raises_in_a_function_takes_the_place_of_its_element(stopping: None) -> None:
    def dataset() -> Dataset:
        return Dataset.range(6).map(lambda x: (x == 3 and signal.raise_signal(signal.SIGINT)) or x)

    elements = iter(dataset())
    assert [int(next(elements)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Stop):
        next(elements)
    elsewhere = iter(dataset())
    elsewhere.load_state_dict(elements.state_dict())
    assert [int(x) for x in elsewhere] == [int(x) for x in elements] == [4, 5]


def test_a_dataset_that_is_read_in_a_function_delays_interrupts_no_longer_than_the_outer_one(seen: list[int]) -> None:
    mine = signal.getsignal(signal.SIGINT)
    inner = Dataset.range(3)
    assert [int(x) for x in Dataset.range(2).map(lambda x: x + len(list(inner)))] == [3, 4]
    assert signal.getsignal(signal.SIGINT) is mine


def test_a_loop_in_another_thread_leaves_the_handler_alone(seen: list[int]) -> None:
    mine = signal.getsignal(signal.SIGINT)
    during: list[Any] = []
    dataset = Dataset.range(3).map(lambda x: during.append(signal.getsignal(signal.SIGINT)) or x)
    thread = threading.Thread(target=lambda: list(dataset))
    thread.start()
    thread.join()
    assert during == [mine] * 3


def test_a_process_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        dataset = Dataset.range(3).map(lambda x: signal.raise_signal(signal.SIGINT) or x)
        assert [int(x) for x in dataset] == [0, 1, 2]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

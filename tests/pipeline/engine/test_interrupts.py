"""While an iterator pulls, dsnb handles SIGINT; before and after, and for everybody else, nothing changes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.interrupts import INTERRUPTS


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


def test_the_second_of_two_interrupts_comes_at_once(seen: list[int]) -> None:
    with INTERRUPTS:
        interrupt_in_own_code()
        interrupt_in_own_code()
        assert seen == [signal.SIGINT]
    assert seen == [signal.SIGINT]


def test_an_interrupt_in_a_call_whose_answer_counts_comes_after_it(seen: list[int]) -> None:
    with INTERRUPTS:
        with INTERRUPTS.delayed_in_waits():
            signal.raise_signal(signal.SIGINT)
            assert not seen
        INTERRUPTS.raise_pending()
        assert seen == [signal.SIGINT]


def test_the_error_of_an_element_comes_before_a_delayed_interrupt() -> None:
    def fail() -> None:
        interrupt_in_own_code()
        raise ValueError("the error of an element")

    with pytest.raises(ValueError, match="element"), INTERRUPTS:
        fail()
    with pytest.raises(KeyboardInterrupt), INTERRUPTS:
        pass


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

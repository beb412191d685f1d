"""Which element of a task goes to which consumer, and when a turn is whole."""

from __future__ import annotations

from dsnb.code.failures import failure_of
from dsnb.elements.frame import Frame
from dsnb.wire.schedule import consumer_name
from dsnb.worker.round_log import RoundLog


def sequence(consumers: int, elements: int = 0) -> RoundLog:
    made = RoundLog(consumers=consumers, read_ahead_bytes=1 << 20)
    frame = Frame.of_failure(failure_of(ValueError("stands for elements"), ""))
    for index in range(consumers):
        made.attach(f"c{index}", consumer_name(index))
        made.credit(f"c{index}", 100, 0, 1 << 20)
    for _ in range(elements):
        made.append(frame, 1, 8)
    return made


def indices(made: RoundLog, client: str) -> list[int]:
    """The elements that a client is sent now."""
    found = []
    while (taken := made.take(client)) is not None:
        found.append(taken.index)
    made.validate()
    return found


def test_each_consumer_gets_its_own_element_of_each_turn() -> None:
    made = sequence(3, 8)
    assert [indices(made, f"c{index}") for index in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_a_turn_is_whole_when_all_have_received_it_and_kept_until_all_have_taken_it() -> None:
    made = sequence(2, 4)
    for client in ("c0", "c1"):
        indices(made, client)
    made.credit("c0", 0, 0, 1 << 20, received=2)
    assert (made.complete_rounds, made.unreported_progress("c0")) == (0, (0, 0))
    made.credit("c1", 0, 0, 1 << 20, received=1)
    assert (made.complete_rounds, made.unreported_progress("c0"), made.unreported_progress("c0")) == (1, (1, 0), None)
    made.credit("c0", 100, 1, 1 << 20)
    assert made.base == 0
    made.credit("c1", 100, 1, 1 << 20)
    assert (made.base, made.tail) == (1, 2)


def test_who_comes_anew_is_sent_what_not_all_have_taken() -> None:
    made = sequence(2, 6)
    for client in ("c0", "c1"):
        indices(made, client)
        made.credit(client, 0, 0, 1 << 20, received=3)
    made.credit("c0", 100, 2, 1 << 20)
    made.credit("c1", 100, 1, 1 << 20)
    made.attach("again", consumer_name(1))
    made.credit("again", 100, 1, 1 << 20)
    assert indices(made, "again") == [3, 5]
    assert made.take("c1") is None


def test_what_a_client_says_after_another_has_taken_its_place_changes_nothing() -> None:
    made = sequence(2, 6)
    made.attach("again", consumer_name(1))
    made.credit("c1", 100, 3, 1 << 20, received=3)  # for example when its broken connection is removed
    assert made.recall("c1") == 0
    assert made.take("again") is None, "it has no credit"
    made.credit("again", 100, 0, 1 << 20)
    assert indices(made, "again") == [1, 3, 5]


def test_an_end_is_told_when_all_whole_turns_are() -> None:
    made = sequence(2, 3)
    made.finish()
    assert not made.at_end("c0")
    for client in ("c0", "c1"):
        indices(made, client)
        made.credit(client, 0, 0, 1 << 20, received=1)
    made.unreported_progress("c0")
    assert made.at_end("c0")
    assert not made.at_end("c1")

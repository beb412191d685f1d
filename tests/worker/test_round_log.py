"""Which element of a task goes to which consumer, and when a turn is whole."""

from __future__ import annotations

from dsnb.code.failures import failure_of
from dsnb.elements.frame import Frame
from dsnb.wire.schedule import Leftovers, consumer_name
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
    assert [indices(made, f"c{index}") for index in range(3)] == [[0, 3], [1, 4], [2, 5]], "of whole rounds only"


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


def test_an_end_is_told_when_all_rounds_are_complete_and_the_leftovers_divided() -> None:
    made = sequence(2, 3)
    made.finish()
    for client in ("c0", "c1"):
        indices(made, client)
        made.credit(client, 0, 0, 1 << 20, received=1)
    made.unreported_progress("c0")
    assert not made.at_end("c0"), "other tasks may have leftovers too"
    made.divide_leftovers(Leftovers())
    assert made.at_end("c0")
    assert not made.at_end("c1")


def test_leftovers_go_to_the_consumers_that_the_dispatcher_names_as_their_next_task_rounds() -> None:
    made = sequence(3, 8)
    made.finish()
    for client in ("c0", "c1", "c2"):
        indices(made, client)
        made.credit(client, 100, 2, 1 << 20)
    made.divide_leftovers(Leftovers(consumers=(2, 0, 2), elements=(6, 7, 7)))
    assert [indices(made, f"c{index}") for index in range(3)] == [[6], [], [8, 11]], "task rounds 2, and 2 and 3"
    made.credit("c2", 100, 3, 1 << 20, received=4)
    assert (made.complete_rounds, made.base) == (2, 2), "consumer 0 has not received its element"
    made.credit("c0", 100, 3, 1 << 20)
    assert (made.complete_rounds, made.base) == (4, 3)
    made.credit("c2", 100, 4, 1 << 20)
    assert (made.base, made.tail, made.nbytes) == (4, 8, 0), "nothing is kept"
    made.validate()


def test_an_error_that_ended_the_data_is_told_though_all_whole_rounds_are_consumed() -> None:
    made = sequence(2, 4)
    for client in ("c0", "c1"):
        indices(made, client)
        made.credit(client, 100, 2, 1 << 20)
    made.append(Frame.of_failure(failure_of(ValueError("the last"), "")), 1, 8, failed=True)
    made.finish()
    made.divide_leftovers(Leftovers())
    assert made.nbytes == 0
    assert str(made.end_error("job")).startswith("the last")


def test_an_error_among_leftovers_that_nobody_gets_is_told_at_the_end() -> None:
    made = sequence(2, 3)
    made.append(Frame.of_failure(failure_of(ValueError("broken"), "")), 1, 8, failed=True)
    made.append(Frame.of_failure(failure_of(ValueError("the last"), "")), 1, 8, failed=True)
    made.finish()
    made.divide_leftovers(Leftovers())
    assert str(made.end_error("job")).startswith("the last")
    made = sequence(2, 2)
    made.append(Frame.of_failure(failure_of(ValueError("the last"), "")), 1, 8, failed=True)
    made.finish()
    made.divide_leftovers(Leftovers(consumers=(1,), elements=(2,)))
    assert made.end_error("job") is None, "it stands in its consumer's place"

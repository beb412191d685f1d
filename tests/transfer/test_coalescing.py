"""What goes to a reader in one message, by how it got on with what was sent before."""

from __future__ import annotations

from dsnb.transfer.coalescing import Coalescer

SMALL = 8_000


def running(load: Coalescer, elements: int, *, every: float, back: float) -> float:
    """So many elements, each in a message, of which the reader speaks so long after each; gives the time by then."""
    for element in range(elements):
        load.record_send(1, element * every)
        load.record_acknowledgement(element + 1, element + 1, element * every + back)
    return elements * every


def late(load: Coalescer) -> float:
    """Make the reader late: four elements are under way for a second when it has consumed the one before them."""
    now = running(load, 1, every=0.002, back=0.001)
    for _ in range(4):
        load.record_send(1, now)
    load.record_acknowledgement(1, 1, now + 1)
    return now + 1


def test_a_reader_in_time_gets_each_element_at_once() -> None:
    load = Coalescer()
    now = running(load, 50, every=0.002, back=0.001)
    for _ in range(50):  # and so it is when many are on their way, if not for long
        load.record_send(1, now)
    load.record_acknowledgement(50, 50, now + 0.002)
    assert load.max_bytes(small=True) == 0
    assert load.hold_seconds(SMALL, now, now) == 0


def test_for_a_reader_that_has_nothing_left_and_does_not_get_what_is_on_its_way_elements_wait_together() -> None:
    load = Coalescer()
    now = late(load)
    assert load.max_bytes(small=True) > 100 * SMALL
    assert load.hold_seconds(SMALL, now, now) > 0


def test_a_late_reader_always_has_a_message_to_take_while_another_waits_together() -> None:
    load = Coalescer()
    now = late(load)
    load.record_acknowledgement(4, 4, now)
    assert load.hold_seconds(SMALL, now, now) == 0, "one message is on its way: another may go"
    load.record_send(10, now)
    assert load.hold_seconds(SMALL, now, now) > 0
    load.record_acknowledgement(5, 5, now)
    assert load.hold_seconds(SMALL, now, now) == 0


def test_what_waits_goes_in_the_end_whatever_its_reader_says() -> None:
    load = Coalescer()
    now = late(load)
    assert load.hold_seconds(SMALL, now - 0.04, now) < load.hold_seconds(SMALL, now, now)
    assert load.hold_seconds(SMALL, now - 0.1, now) == 0


def test_what_is_much_goes_at_once() -> None:
    load = Coalescer()
    now = late(load)
    assert load.hold_seconds(8 << 20, now, now) == 0


def test_a_reader_that_is_in_time_again_gets_each_element_at_once_again() -> None:
    load = Coalescer()
    now = late(load)
    load.record_acknowledgement(5, 5, now)
    assert load.max_bytes(small=True) == 0
    load.record_send(1, now)
    load.record_send(1, now)
    assert load.hold_seconds(SMALL, now, now) == 0


def test_a_reader_that_has_more_to_consume_is_not_late() -> None:
    """Its trainer takes long for each element: nothing is known of the way to it."""
    load = Coalescer()
    now = running(load, 1, every=0.002, back=0.001)
    for _ in range(8):
        load.record_send(1, now)
    load.record_acknowledgement(5, 2, now + 1)
    assert load.max_bytes(small=True) == 0


def test_a_reader_is_not_late_because_the_way_to_it_is_long() -> None:
    """100 ms there and back: when it speaks of one element, 50 others have long been on their way."""
    load = Coalescer()
    for step in range(200):
        now = step * 0.002
        load.record_send(1, now)
        if step >= 50:
            load.record_acknowledgement(step - 49, step - 49, now)
            assert load.max_bytes(small=True) == 0


def test_a_reading_that_is_opened_again_counts_on() -> None:
    load = Coalescer(received=100)
    load.record_send(1, 0.0)
    load.record_acknowledgement(101, 101, 0.001)
    load.record_send(1, 1.0)
    load.record_send(1, 1.0)
    load.record_acknowledgement(101, 101, 2.0)
    assert load.hold_seconds(SMALL, 2.0, 2.0) > 0


def test_large_elements_that_are_long_on_their_way_say_nothing_of_their_reader() -> None:
    load = Coalescer()
    now = running(load, 1, every=0.002, back=0.001)
    load.record_large_send(8)
    load.record_acknowledgement(2, 2, now + 1)
    assert load.max_bytes(small=True) == 0
    load.record_send(1, now + 1)
    load.record_acknowledgement(10, 10, now + 1.001)
    assert load.max_bytes(small=True) == 0


def test_large_elements_are_not_put_together_because_small_ones_are_late() -> None:
    assert late(load := Coalescer())
    assert load.max_bytes(small=False) == 0


def test_over_a_slow_link_nothing_goes_together() -> None:
    load = Coalescer()
    for _ in range(20):
        load.record_send_time(1 << 20, 0.1)
    assert load.max_bytes(small=False) < 1 << 20

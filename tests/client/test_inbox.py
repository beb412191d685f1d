from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from dsnb.client.inbox import INITIAL_MAX_BYTES, Inbox, TaskRead
from dsnb.client.ordered_inboxes import RoundRobinInbox
from dsnb.elements.frame import Frame, frames_of
from dsnb.errors import CancelledError, UnavailableError
from dsnb.transfer.grpc import GRPC
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.messages import ClientUpdate, TaskInfo


def piece_of(count: int, nbytes_each: int = 8) -> FrameSlice:
    (frame,) = frames_of([b"x" * nbytes_each for _ in range(count)], None)
    assert isinstance(frame, Frame)
    return FrameSlice(frame, 0, 0, count, 1)


def hold_of(inbox: Inbox, share_bytes: int = 1 << 20) -> TaskRead:
    return TaskRead(inbox, TaskInfo(task_id="t", worker="w0"), share_bytes)


def test_what_is_delivered_is_kept_in_order_and_counted() -> None:
    inbox = Inbox()
    one, other = hold_of(inbox), hold_of(inbox)
    pieces = [piece_of(3), piece_of(2), piece_of(4)]
    for hold, piece in zip((one, other, one), pieces, strict=True):
        hold.sink().deliver(piece)
    assert [piece for _, piece in inbox.slices] == pieces
    assert (one.account.received, other.account.received) == (7, 2)
    assert one.account.active_at > 0


def test_a_task_that_delivers_nothing_is_idle() -> None:
    inbox = Inbox()
    hold = hold_of(inbox)
    hold.sink().deliver_all([])
    assert hold.account.active_at == 0, "its credit would never move to another task"
    assert not inbox.has_events


def test_the_end_and_a_recall_change_the_account() -> None:
    hold = hold_of(Inbox())
    sink = hold.sink()
    hold.account.granted, hold.account.recalling = 10, True
    sink.recalled(6)
    assert (hold.account.granted, hold.account.recalling) == (6, False)
    sink.end()
    assert hold.account.ended


def test_a_recall_never_takes_back_what_has_arrived() -> None:
    hold = hold_of(Inbox())
    hold.account.granted, hold.account.received, hold.account.recalling = 10, 8, True
    hold.sink().recalled(6)
    assert hold.account.granted == 8


@pytest.mark.parametrize("kind", [Inbox, RoundRobinInbox])
def test_an_inbox_that_is_cleared_holds_no_elements(kind: type[Inbox]) -> None:
    inbox = kind()
    piece = piece_of(3)
    hold_of(inbox).sink().deliver(piece)
    frame = weakref.ref(piece.frame)
    del piece
    assert inbox.ready
    assert frame() is not None
    inbox.clear()
    assert not inbox.ready
    assert frame() is None


def test_what_an_earlier_reading_still_says_is_not_heard() -> None:
    inbox = Inbox()
    hold = hold_of(inbox)
    stale = hold.sink()
    stale.current = False
    stale.deliver(piece_of(3))
    stale.end()
    stale.recalled(0)
    stale.fail(UnavailableError("gone"))
    assert not inbox.has_events
    assert (hold.account.received, hold.account.ended) == (0, False)


def test_a_reading_fails_once_and_then_says_nothing_more() -> None:
    inbox = Inbox()
    sink = hold_of(inbox).sink()
    sink.fail(UnavailableError("first"))
    sink.fail(UnavailableError("second"))
    sink.deliver(piece_of(1))
    assert [str(error) for _, error in inbox.failed] == ["first"]
    assert not inbox.slices


def test_each_kind_of_news_wakes_the_reader() -> None:
    for stir in (
        lambda inbox: hold_of(inbox).sink().deliver(piece_of(1)),
        lambda inbox: hold_of(inbox).sink().fail(UnavailableError("gone")),
        lambda inbox: inbox.update(ClientUpdate(has_state=True)),
        lambda inbox: inbox.set_refusal(CancelledError("unknown")),
        Inbox.cancel,
    ):
        inbox = Inbox()
        with inbox.changed:
            threading.Thread(target=stir, args=(inbox,)).start()
            assert inbox.changed.wait_for(lambda inbox=inbox: inbox.has_events, timeout=10.0)


class Sockets:
    """Two pipes in place of the sockets of a reader's tasks."""

    def __init__(self, inbox: Inbox, *on_readable: Callable[[], None]) -> None:
        assert inbox.poller is not None
        self._pipes = [os.pipe() for _ in on_readable]
        for (readable, _), act in zip(self._pipes, on_readable, strict=True):
            inbox.poller.add(readable, lambda fd=readable, act=act: (os.read(fd, 1), act()))

    def write(self, number: int) -> None:
        os.write(self._pipes[number][1], b"x")

    def close(self) -> None:
        for descriptor in (fd for pipe in self._pipes for fd in pipe):
            os.close(descriptor)


def test_elements_whose_turn_has_not_come_do_not_end_a_wait() -> None:
    inbox = RoundRobinInbox()
    first = TaskRead(inbox, TaskInfo(task_id="first", worker="w0"), 1 << 20)
    second = TaskRead(inbox, TaskInfo(task_id="second", worker="w1"), 1 << 20)
    inbox.set_task_reads([first, second])
    sockets = Sockets(
        inbox,
        lambda: (second.sink().deliver(piece_of(1)), sockets.write(1)),
        lambda: first.sink().deliver(piece_of(1)),
    )
    sockets.write(0)
    inbox.wait(60.0)
    assert inbox.ready
    inbox.clear()
    sockets.close()


def test_news_from_another_thread_end_a_wait_also_while_sockets_are_read() -> None:
    inbox = RoundRobinInbox()
    early = TaskRead(inbox, TaskInfo(task_id="early", worker="w1"), 1 << 20)
    late = TaskRead(inbox, TaskInfo(task_id="late", worker="w0"), 1 << 20)
    inbox.set_task_reads([late, early])

    def read() -> None:
        early.sink().deliver(piece_of(1))
        canceller = threading.Thread(target=inbox.cancel)
        canceller.start()
        canceller.join()

    sockets = Sockets(inbox, read)
    sockets.write(0)
    began = time.monotonic()
    inbox.wait(120.0)
    assert inbox.cancelled
    assert time.monotonic() - began < 60.0
    inbox.clear()
    sockets.close()


def test_a_task_begins_with_few_bytes_on_their_way_and_its_share_bounds_them() -> None:
    assert hold_of(Inbox()).max_bytes == INITIAL_MAX_BYTES
    assert hold_of(Inbox(), share_bytes=1000).max_bytes == 1000


def test_that_as_much_as_may_be_was_on_its_way_is_noted() -> None:
    hold = hold_of(Inbox(), share_bytes=1000)
    hold.sink().deliver(piece_of(1, 400))
    assert not hold.was_full
    hold.sink().deliver(piece_of(1, 100))
    assert hold.was_full
    assert hold.buffered_bytes == 500


def test_over_grpc_there_may_be_several_large_pieces_on_their_way() -> None:
    """More of them than arrive at a time: the worker sends together what waits for a reader that is late."""
    hold = hold_of(Inbox(), share_bytes=4000)
    hold.max_bytes = 4000
    hold.sink().deliver(piece_of(1, 600))
    assert not hold.was_full
    hold.transfer = GRPC
    hold.sink().deliver(piece_of(1, 400))
    assert not hold.was_full
    hold.sink().deliver(piece_of(1, 600))
    assert hold.was_full

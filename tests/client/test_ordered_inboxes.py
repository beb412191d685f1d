from __future__ import annotations

import numpy as np

from dsnb.client.inbox import TaskRead
from dsnb.client.ordered_inboxes import RoundRobinInbox
from dsnb.elements.frame import Frame, frames_of
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.messages import TaskInfo


def hold(inbox: RoundRobinInbox, worker: str) -> TaskRead:
    return TaskRead(inbox, TaskInfo(task_id=f"of {worker}", worker=worker), 1 << 20)


def piece(*values: int) -> FrameSlice:
    (frame,) = frames_of(np.array(values), None)
    assert isinstance(frame, Frame)
    return FrameSlice(frame, 0, 0, len(values), 1)


def put(hold_: TaskRead, inbox: RoundRobinInbox, piece: FrameSlice) -> None:
    with inbox.changed:
        inbox.put(hold_, piece)


def taken(inbox: RoundRobinInbox) -> list[int]:
    """All that can be taken now."""
    values = []
    while inbox.ready:
        values += [int(x) for x in inbox.take()[1].elements()]
    return values


def test_tasks_are_served_in_turn_whatever_comes_first() -> None:
    inbox = RoundRobinInbox()
    a, b = hold(inbox, "w0"), hold(inbox, "w1")
    inbox.set_task_reads([b, a])
    put(b, inbox, piece(10, 11, 12))
    assert not taken(inbox), "it is the other one's turn"
    put(a, inbox, piece(0))
    assert taken(inbox) == [0, 10]
    put(a, inbox, piece(1, 2))
    assert taken(inbox) == [1, 11, 2, 12]


def test_one_that_has_ended_is_passed_over() -> None:
    inbox = RoundRobinInbox()
    a, b = hold(inbox, "w0"), hold(inbox, "w1")
    inbox.set_task_reads([a, b])
    put(a, inbox, piece(0))
    put(b, inbox, piece(10, 11, 12))
    a.account.ended = True
    assert taken(inbox) == [0, 10, 11, 12]
    b.account.ended = True
    assert not inbox.ready


def test_what_is_left_of_one_that_is_gone_still_comes() -> None:
    inbox = RoundRobinInbox()
    a, b = hold(inbox, "w0"), hold(inbox, "w1")
    inbox.set_task_reads([a, b])
    put(a, inbox, piece(0, 1))
    put(b, inbox, piece(10))
    inbox.set_task_reads([b])
    a.account.ended = True
    assert taken(inbox) == [0, 10, 1]
    b.account.ended = True
    inbox.set_task_reads([b])
    assert not inbox.ready

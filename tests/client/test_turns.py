from __future__ import annotations

import numpy as np

from dsnb.client.inbox import Hold
from dsnb.client.turns import InboxInTurn
from dsnb.elements.frame import Frame, frames_of
from dsnb.wire.messages import TaskInfo
from dsnb.wire.transfer.handover import Piece


def hold(inbox: InboxInTurn, worker: str) -> Hold:
    return Hold(inbox, TaskInfo(task_id=f"of {worker}", worker=worker), 1 << 20)


def piece(*values: int) -> Piece:
    (frame,) = frames_of(np.array(values), None)
    assert isinstance(frame, Frame)
    return Piece(frame, 0, 0, len(values), 1)


def put(hold_: Hold, inbox: InboxInTurn, piece: Piece) -> None:
    with inbox.changed:
        inbox.put(hold_, piece)


def taken(inbox: InboxInTurn) -> list[int]:
    """All that can be taken now."""
    values = []
    while inbox.ready:
        values += [int(x) for x in inbox.take()[1].elements()]
    return values


def test_tasks_are_served_in_turn_whatever_comes_first() -> None:
    inbox = InboxInTurn()
    a, b = hold(inbox, "w0"), hold(inbox, "w1")
    inbox.follow([b, a])
    put(b, inbox, piece(10, 11, 12))
    assert not taken(inbox), "it is the other one's turn"
    put(a, inbox, piece(0))
    assert taken(inbox) == [0, 10]
    put(a, inbox, piece(1, 2))
    assert taken(inbox) == [1, 11, 2, 12]


def test_one_that_has_ended_is_passed_over() -> None:
    inbox = InboxInTurn()
    a, b = hold(inbox, "w0"), hold(inbox, "w1")
    inbox.follow([a, b])
    put(a, inbox, piece(0))
    put(b, inbox, piece(10, 11, 12))
    a.account.ended = True
    assert taken(inbox) == [0, 10, 11, 12]
    b.account.ended = True
    assert not inbox.ready


def test_what_is_left_of_one_that_is_gone_still_comes() -> None:
    inbox = InboxInTurn()
    a, b = hold(inbox, "w0"), hold(inbox, "w1")
    inbox.follow([a, b])
    put(a, inbox, piece(0, 1))
    put(b, inbox, piece(10))
    inbox.follow([b])
    a.account.ended = True
    assert taken(inbox) == [0, 10, 1]
    b.account.ended = True
    inbox.follow([b])
    assert not inbox.ready

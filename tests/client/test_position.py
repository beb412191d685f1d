"""The bookmark of a distributed dataset: what was had of each task, and in which turns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsnb.client import position
from dsnb.client.inbox import TaskRead
from dsnb.client.ordered_inboxes import ReplayInbox
from dsnb.client.position import History, decode_end, decode_position, encode_end, encode_position
from dsnb.elements.frame import Frame, frames_of
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.messages import IterationPosition, TaskInfo, TaskPosition

TOLD = IterationPosition(
    tasks=(TaskPosition(task_id="a", incarnation=1, entropy=7), TaskPosition(task_id="b", incarnation=1, skip=10))
)


def history(*turns: tuple[str, int]) -> History:
    """What a reader had, in these turns."""
    made, at = History(), {"a": 0, "b": 0}
    for task, count in turns:
        made.add(task, 1, at[task], count)
        at[task] += count
    return made


def marked(made: History, behind: int, told: IterationPosition = TOLD) -> dict[str, Any]:
    had, later = made.split_at(behind)
    return encode_position(0, behind, had, later, set(), told)


def test_what_is_behind_is_added_up_and_what_comes_after_is_kept_in_its_turns() -> None:
    mark = marked(history(("a", 3), ("b", 2), ("a", 4), ("b", 1)), 6)
    assert [task["skip"] for task in mark["tasks"]] == [4, 12]
    assert mark["turns"] == [[0, 3], [1, 1]]
    again = decode_position(json.loads(json.dumps(mark)))
    assert [task.skip for task in again.position.tasks] == [4, 12]
    assert (again.skippable, again.read_order) == (6, ((0, 3), (1, 1)))


def test_turns_of_one_task_are_one_turn() -> None:
    assert marked(history(("a", 3), ("a", 2), ("b", 1)), 0)["turns"] == [[0, 5], [1, 1]]


def test_only_so_many_turns_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "MAX_READ_ORDER", 4)
    made = history(*[("a", 1), ("b", 1)] * 5)
    assert [task["skip"] for task in marked(made, 8)["tasks"]] == [4, 14]
    with pytest.raises(FailedPreconditionError, match="4 turns between workers ago"):
        marked(made, 5)


def test_elements_that_others_had_are_noticed() -> None:
    made = history(("a", 3))
    made.add("a", 1, 5, 1)
    with pytest.raises(FailedPreconditionError, match="other readers of the job"):
        made.split_at(4)


def test_a_task_that_began_again_counts_from_its_beginning() -> None:
    made = history(("a", 3))
    made.add("a", 2, 0, 2)
    told = IterationPosition(tasks=(TaskPosition(task_id="a", incarnation=2),))
    assert [task["skip"] for task in marked(made, 5, told)["tasks"]] == [2]
    with pytest.raises(FailedPreconditionError, match="elements of a worker that was lost"):
        marked(made, 1, told)


def test_a_pass_that_is_over_is_its_length() -> None:
    mark = encode_end(3, 40)
    assert decode_end(mark) == (3, 40)
    assert decode_end(marked(history(("a", 1)), 0)) is None


@pytest.mark.parametrize("damage", [{"tasks": None}, {"tasks": [1]}, {"turns": [[0]]}, {"providers": [3]}])
def test_a_damaged_bookmark_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="the reading position is damaged"):
        decode_position({**marked(history(("a", 1)), 0), **damage})


def inbox_of(*turns: tuple[str, int]) -> tuple[ReplayInbox, dict[str, TaskRead]]:
    inbox = ReplayInbox(turns)
    holds = {name: TaskRead(inbox, TaskInfo(task_id=name), 1 << 20) for name in "ab"}
    inbox.set_task_reads(list(holds.values()))
    return inbox, holds


def put(inbox: ReplayInbox, hold: TaskRead, values: list[int]) -> None:
    (frame,) = frames_of(values, None)
    assert isinstance(frame, Frame)
    with inbox.changed:
        inbox.put(hold, FrameSlice(frame, 0, 0, len(values), 1))


def taken(inbox: ReplayInbox) -> list[int]:
    with inbox.changed:
        return [int(x) for x in inbox.take()[1].elements()] if inbox.ready else []


def test_pieces_come_in_the_turns_of_before_and_then_as_they_come() -> None:
    inbox, holds = inbox_of(("b", 1), ("a", 3), ("b", 1))
    put(inbox, holds["a"], [1, 2])
    assert taken(inbox) == []
    put(inbox, holds["b"], [10, 11, 12])
    assert [taken(inbox) for _ in range(3)] == [[10], [1, 2], []]
    put(inbox, holds["a"], [3, 4])
    assert [taken(inbox) for _ in range(4)] == [[3], [11], [12], [4]]


def test_the_turn_of_a_task_that_has_ended_is_left_out() -> None:
    inbox, holds = inbox_of(("a", 3), ("b", 1))
    put(inbox, holds["b"], [10])
    holds["a"].account.ended = True
    assert taken(inbox) == [10]

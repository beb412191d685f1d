"""A process dies, stands still or meets a full disk at each failpoint: no element is lost, and each file is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dsnb.storage.failpoints import FAILPOINTS, Fault, failpoint_hook
from tests.faults.points import HERE, ROLES, TABLE, Points
from tests.support.processes import PythonProcess

PROGRAMS = [
    ["tests.faults.files_at_points"],
    *(["tests.faults.service_at_points", role, action] for role in ROLES for action in ("kill", "suspend")),
    ["tests.faults.service_at_points", "dispatcher", "fail"],
]
WHENS = ("before", "after")


def test_each_failpoint_is_in_the_table_once() -> None:
    listed = [name for points in TABLE for name in points.names]
    assert sorted(listed) == sorted(name for name in FAILPOINTS if not name.startswith("test of "))


def test_those_at_which_a_disk_may_be_full_are_tested_with_a_full_disk() -> None:
    assert [points.names for points in TABLE if bool(points.fails) != ("fail" in points.actions)] == []


@pytest.mark.parametrize(
    "text",
    ["", "journal commit", "journal commit:kill", "journal commit/after:kill:1:2", "journal commit/after:fail",
     "journal commit/later:kill", "journal commit/after:leave"],
)  # fmt: skip
def test_a_fault_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be like"):
        Fault(text)


def test_a_fault_comes_when_its_failpoint_is_reached_for_the_nth_time() -> None:
    point = FAILPOINTS["blob name"]
    with failpoint_hook(Fault("blob name/before:fail:2")):
        with point:
            pass
        with pytest.raises(OSError, match="No space left"), point:
            pass
        with point:
            pass


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, list[str]]]:
    """What each fault led to. The programs wait most of the time, and so are begun all at once."""
    with ExitStack() as stack:
        begun = [stack.enter_context(PythonProcess(["-m", *words])) for words in PROGRAMS]
        faults = dict[str, list[str]]()
        for process in begun:
            line = process.wait_for_line("FOUND", timeout=1_200)
            assert process.wait_for_exit() == 0
            for fault, problem in json.loads(line.removeprefix("FOUND")).items():
                what = ":".join(fault.split(":")[:2])
                faults.setdefault(what, []).extend([f"{process.describe()}: {problem}"] if problem else [])
        yield faults


@pytest.mark.slow
@pytest.mark.timeout(1_300)
@pytest.mark.parametrize("points,name", [(row, name) for row in TABLE if row.tests == HERE for name in row.names])
def test_what_the_table_says_holds(found: dict[str, list[str]], points: Points, name: str) -> None:
    faults = [f"{name}/{when}:{act}" for act in points.actions for when in (WHENS if act != "fail" else ("before",))]
    assert [problem for fault in faults for problem in found[fault]] == []

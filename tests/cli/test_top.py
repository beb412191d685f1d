"""`dsnb top`: what its screen shows, and how it scrolls."""

from __future__ import annotations

import pytest

from dsnb.cli.top import screen_lines, scrolled
from tests.dashboard.snapshots import SECOND, job, snapshot, trainer, worker

UP, DOWN, PAGE_UP, PAGE_DOWN = b"\x1b[a", b"\x1b[b", b"\x1b[5~", b"\x1b[6~"


@pytest.mark.parametrize(
    "top, key, shown",
    [
        (0, b"", 0),
        (0, DOWN, 1),
        (0, b"j", 1),
        (5, UP, 4),
        (0, UP, 0),
        (0, PAGE_DOWN, 9),
        (0, b" ", 9),
        (25, PAGE_DOWN, 30),
        (30, DOWN, 30),
        (30, PAGE_UP, 21),
        (3, PAGE_UP, 0),
    ],
)
def test_keys_scroll_within_forty_lines_on_a_screen_of_ten(top: int, key: bytes, shown: int) -> None:
    assert scrolled(top, key, 40, 10) == shown


def test_a_screen_that_holds_all_lines_does_not_scroll_and_one_that_grew_scrolls_back() -> None:
    assert scrolled(0, PAGE_DOWN, 8, 10) == 0
    assert scrolled(30, b"", 25, 10) == 15


def test_jobs_that_are_read_come_first_and_modes_are_those_of_distribute() -> None:
    jobs = (
        job("over", state="finished", clients=0, mode="DYNAMIC"),
        job("left", state="idle", clients=0),
        job("now", mode="DYNAMIC"),
        job("also"),
        job("halves", mode="FILE"),
    )
    lines = screen_lines([snapshot(5, jobs=jobs)], 120)
    assert [line.split(":")[0] for line in lines if line.startswith("job ")] == [
        "job now (distributed_epoch, running)",
        "job also (parallel_epochs, running)",
        "job halves (FILE, running)",
        "job over (distributed_epoch, finished)",
        "job left (parallel_epochs, idle)",
    ]


def test_a_reader_that_left_without_an_element_has_no_row() -> None:
    readers = (
        trainer("reads", elements=5, active_ns=SECOND),
        trainer("new", active_ns=SECOND),
        trainer("was late", clients=0, active_ns=SECOND),
        trainer("lost some", clients=0, lost=3),
    )
    shown = "\n".join(screen_lines([snapshot(5, jobs=(job(trainers=readers),), workers=(worker(),))], 120))
    assert [name for name in ("reads", "new", "was late", "lost some") if name in shown] == [
        "reads",
        "new",
        "lost some",
    ]

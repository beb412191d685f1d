"""The demo's figures follow from the service's status and the trainers' own counts."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from dsnb.demo.result import DemoResult, result_of
from dsnb.demo.table import progress_line, table
from dsnb.demo.trainer import Trainer, TrainerSettings
from dsnb.monitor.snapshot import CursorStatus, JobStatus, TrainerStatus
from dsnb.wire.messages import StageReport

JOB = JobStatus(
    name="digits",
    anonymous=False,
    dataset_id="d",
    pipeline="list_files | batch(32)",
    mode="DYNAMIC",
    cached=True,
    iteration=0,
    state="running",
    clients=2,
    produced=1010,
    consumed=1800,
    trainers=(
        TrainerStatus(trainer_id="fast", clients=1, elements=1000, hits=100, misses=900),
        TrainerStatus(
            trainer_id="slow",
            clients=1,
            elements=800,
            hits=700,
            misses=100,
            skipped=3,
            cursors=(CursorStatus(task_id="t", worker="w0", offset=803, lag=207),),
        ),
    ),
    stages=(
        StageReport(name="batch(32)", depth=0, elements=1010, busy_ns=1_010_000_000),
        StageReport(name="list_files", depth=1, elements=32_320, busy_ns=4_040_000_000),
    ),
)


def trainers(accuracy: float = 0.95) -> list[Trainer]:
    held_out = np.zeros((4, 2), np.float32), np.zeros(4, np.int64)
    made = []
    for name in ("fast", "slow"):
        trainer = Trainer(TrainerSettings(trainer_id=name, learning_rate=0.1, hidden=(8,)), held_out)
        trainer.accuracy = accuracy
        made.append(trainer)
    return made


def result(accuracy: float = 0.95) -> DemoResult:
    return result_of(JOB, trainers(accuracy), {"slow": 400}, batch_size=32, target_accuracy=0.9, seconds=4.2)


def test_each_trainer_has_its_own_figures() -> None:
    fast, slow = result().trainers

    assert (fast.served, slow.served) == JOB.trainers
    assert (fast.served.elements, fast.served.lag) == (1000, 0)
    assert (slow.served.elements, slow.served.lag) == (800, 207)
    assert (fast.largest_lag, slow.largest_lag) == (0, 400)


def test_seconds_saved_is_the_time_of_one_element_for_each_hit() -> None:
    found = result()

    assert found.preprocessing_seconds == 5.05
    assert found.elements_consumed == 1800
    assert round(found.seconds_saved, 6) == 800 * 0.005


@pytest.mark.parametrize("job", [replace(JOB, trainers=()), None], ids=["without trainers", "no job"])
def test_a_trainer_that_the_service_has_not_heard_of_has_consumed_nothing(job: JobStatus | None) -> None:
    found = result_of(job, trainers(), {}, batch_size=32, target_accuracy=0.9, seconds=1.0)

    assert [trainer.served.hits for trainer in found.trainers] == [0, 0]
    assert [trainer.served.elements for trainer in found.trainers] == [0, 0]


def test_the_goal_is_reached_when_each_trainer_has_the_accuracy() -> None:
    assert result(accuracy=0.9).reached
    assert not result(accuracy=0.89).reached


def test_the_table_shows_every_figure_in_columns() -> None:
    lines = table(result()).splitlines()
    rows = [line for line in lines if line.startswith(("trainer ", "fast", "slow"))]

    assert "An element is a batch of 32 digits" in "".join(lines)
    assert len({len(row) for row in rows}) == 1, "the columns are aligned"
    assert rows[1].split() == ["fast", "2-8-10", "1,000", "0.950", "100", "0", "0", "0"]
    assert rows[2].split() == ["slow", "2-8-10", "800", "0.950", "700", "3", "207", "400"]
    assert any("1,010" in line and "once" in line for line in lines)
    assert any("4.0 s" in line and "800 hits x 5.0 ms" in line for line in lines)


def test_the_table_says_whether_the_aim_was_reached() -> None:
    assert "0.900  or more on held-out digits; the aim is 0.9\n" in table(result(accuracy=0.9))
    assert "0.896  or more on held-out digits; a longer run (--seconds) reaches the aim of 0.9\n" in table(
        result(accuracy=0.896)
    )


def test_a_line_of_progress_is_one_line_with_both_trainers() -> None:
    line = progress_line(result())

    assert line.splitlines() == [line]
    for part in ("4 s", "1,010", "fast", "0.95", "slow", "207"):
        assert part in line

"""A trainer ends when it is told to, or with the error of what it reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from dsnb.demo.model import Floats, Labels
from dsnb.demo.trainer import EVALUATE_EVERY, Trainer, TrainerSettings
from dsnb.errors import FailedPreconditionError
from tests.support.waiting import wait_for

COURSE = TrainerSettings(trainer_id="t", learning_rate=0.5, hidden=())
Batch = tuple[Floats, Labels]


def batch(seed: int) -> Batch:
    """Ten classes that the first number of a sample tells apart."""
    labels = np.random.default_rng(seed).integers(0, 10, 32)
    return np.eye(10, dtype=np.float32)[labels], labels


def batches() -> Iterator[Batch]:
    return (batch(seed) for seed in itertools.count())


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = Trainer(COURSE, batch(123))
    yield made
    made.stop()
    assert made.wait(30)


def test_it_trains_until_it_is_stopped(trainer: Trainer) -> None:
    trainer.start(batches())
    wait_for(lambda: trainer.accuracy > 0.9, what="the trainer to learn", timeout=30)
    trainer.stop()

    assert trainer.wait(30)
    assert trainer.failure is None
    assert trainer.batches >= EVALUATE_EVERY


def test_stopped_before_it_begins_it_trains_on_nothing(trainer: Trainer) -> None:
    trainer.stop()
    trainer.start(batches())

    assert trainer.wait(30)
    assert trainer.batches == 0


def test_the_end_of_its_data_is_a_failure_that_says_so(trainer: Trainer) -> None:
    trainer.start(itertools.islice(batches(), 10))

    assert trainer.wait(30)
    assert isinstance(trainer.failure, FailedPreconditionError)
    assert "after 10 batches" in str(trainer.failure)


def test_an_error_of_its_data_is_kept(trainer: Trainer) -> None:
    def broken() -> Iterator[Batch]:
        yield batch(0)
        raise OSError("no such digit")

    trainer.start(broken())

    assert trainer.wait(30)
    assert isinstance(trainer.failure, OSError)
    assert trainer.batches == 1


def test_a_step_takes_as_long_as_the_settings_say() -> None:
    slow = Trainer(TrainerSettings(trainer_id="slow", learning_rate=0.5, hidden=(), step_s=3600.0), batch(123))
    slow.start(batches())
    wait_for(lambda: slow.batches > 0, what="the first step", timeout=30)
    slow.stop()

    assert slow.wait(30), "stopping does not wait for the step"
    assert slow.batches == 1

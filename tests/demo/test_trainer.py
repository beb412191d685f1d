"""A trainer ends when its goal is reached, when it is told to, or with the error of what it reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from dsnb.demo.model import Floats, Labels
from dsnb.demo.trainer import EVALUATE_EVERY, Course, Goal, Trainer

COURSE = Course(trainer_id="t", learning_rate=0.5, hidden=())
Batch = tuple[Floats, Labels]


def batch(seed: int) -> Batch:
    """Ten classes that the first number of a sample tells apart."""
    labels = np.random.default_rng(seed).integers(0, 10, 32)
    return np.eye(10, dtype=np.float32)[labels], labels


def batches() -> Iterator[Batch]:
    return (batch(seed) for seed in itertools.count())


def trainer(goal: Goal) -> Trainer:
    return Trainer(COURSE, goal, batch(123))


def test_it_stops_at_the_goal() -> None:
    trained = trainer(Goal(batches=100, accuracy=0.9))
    trained.start(batches())

    assert trained.wait(30)
    assert trained.passed
    assert trained.batches >= 100
    assert trained.batches % EVALUATE_EVERY == 0
    assert trained.accuracy >= 0.9
    assert trained.failure is None
    assert trained.seconds > 0


def test_accuracy_alone_is_not_enough() -> None:
    trained = trainer(Goal(batches=400, accuracy=0.0))
    trained.start(batches())

    assert trained.wait(30)
    assert trained.batches == 400


def test_it_stops_when_told_although_the_goal_is_far() -> None:
    trained = trainer(Goal(batches=10**9, accuracy=0.9))
    trained.start(batches())
    trained.stop()

    assert trained.wait(30)
    assert not trained.passed
    assert trained.failure is None


def test_the_end_of_its_data_before_the_goal_is_a_failure_that_says_so() -> None:
    trained = trainer(Goal(batches=100, accuracy=0.9))
    trained.start(itertools.islice(batches(), 10))

    assert trained.wait(30)
    assert "after 10 batches" in str(trained.failure)


def test_an_error_of_its_data_is_kept() -> None:
    def broken() -> Iterator[Batch]:
        yield batch(0)
        raise OSError("no such digit")

    trained = trainer(Goal(batches=100, accuracy=0.9))
    trained.start(broken())

    assert trained.wait(30)
    assert isinstance(trained.failure, OSError)
    assert trained.batches == 1

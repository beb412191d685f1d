"""One trainer of the demo: a thread that reads batches from the service and trains a classifier until it is good."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from dsnb.demo.model import Classifier, Floats, Labels
from dsnb.errors import FailedPreconditionError

EVALUATE_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class Course:
    """What one trainer does differently from the others.

    Attributes:
        trainer_id: Its name in the cross-trainer cache.
        hidden: The widths of its model's hidden layers: the wider, the longer a step takes.
    """

    trainer_id: str
    learning_rate: float
    hidden: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """When a trainer is done: after so many batches, at the next evaluation that reaches the accuracy."""

    batches: int
    accuracy: float


class Trainer:
    """A thread that trains on whatever it is given, and tells how far it is.

    Args:
        course: What to train, and how fast.
        goal: When to stop.
        held_out: Samples and labels to measure the accuracy on.

    Example:
        >>> course = Course(trainer_id="lr=0.1", learning_rate=0.1, hidden=())
        >>> trainer = Trainer(course, Goal(batches=100, accuracy=0.9), held_out)  # doctest: +SKIP
        >>> trainer.start(batches)  # doctest: +SKIP
        >>> trainer.wait(60)  # doctest: +SKIP
        True
    """

    def __init__(self, course: Course, goal: Goal, held_out: tuple[Floats, Labels]) -> None:
        self.course = course
        self.goal = goal
        self.batches = 0
        self.accuracy = 0.0
        self.seconds = 0.0
        self.failure: Exception | None = None
        self._held_out = held_out
        self._model = Classifier(
            inputs=held_out[0].shape[1], classes=10, hidden=course.hidden, learning_rate=course.learning_rate
        )
        self._stopped = threading.Event()
        self._ended = threading.Event()

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the model's layers, from the inputs to the classes."""
        return self._model.widths

    @property
    def passed(self) -> bool:
        """Whether the goal is reached."""
        return self.batches >= self.goal.batches and self.accuracy >= self.goal.accuracy

    @property
    def ended(self) -> bool:
        """Whether the thread trains no more."""
        return self._ended.is_set()

    def start(self, batches: Iterable[tuple[Floats, Labels]]) -> None:
        """Begin to train on batches of (samples, labels), in a thread of its own."""
        # A daemon: a second Ctrl-C must be able to end the process in the middle of a read.
        threading.Thread(
            target=self._run, args=(batches,), name=f"trainer {self.course.trainer_id}", daemon=True
        ).start()

    def wait(self, seconds: float) -> bool:
        """Wait until training has ended, for so long at most; whether it has."""
        return self._ended.wait(seconds)

    def stop(self) -> None:
        """Ask the thread to end after its present batch."""
        self._stopped.set()

    def _run(self, batches: Iterable[tuple[Floats, Labels]]) -> None:
        began = time.perf_counter()
        try:
            self._train(batches)
        except Exception as failure:
            self.failure = failure
        finally:
            self.seconds = time.perf_counter() - began
            self._ended.set()

    def _train(self, batches: Iterable[tuple[Floats, Labels]]) -> None:
        for samples, labels in batches:
            self._model.train(samples, labels)
            self.batches += 1
            if self.batches % EVALUATE_EVERY == 0:
                self.accuracy = self._model.accuracy(*self._held_out)
            if self.passed or self._stopped.is_set():
                return
        raise FailedPreconditionError(
            f"the data of the trainer {self.course.trainer_id} ended after {self.batches} batches, before its goal",
            did="its training was ended",
            hint="train on a dataset that repeats",
        )

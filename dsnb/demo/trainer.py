"""One trainer of the demo: a thread that reads batches from the service and trains a classifier until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from dsnb.dataclass import dataclass
from dsnb.demo.model import Classifier, Floats, Labels
from dsnb.errors import FailedPreconditionError

EVALUATE_EVERY = 50
HALF_RATE_AFTER = 500
"""Batches after which the learning rate has come down to one half; after twice as many, to a third."""


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """What one trainer does differently from the others.

    Attributes:
        trainer_id: Its name in the cross-trainer cache.
        hidden: The widths of its model's hidden layers: the wider, the longer a step takes.
    """

    trainer_id: str
    learning_rate: float
    hidden: tuple[int, ...]


class Trainer:
    """A thread that trains on whatever it is given until it is stopped, and tells how far it is.

    Args:
        settings: What to train, and how fast.
        held_out: Samples and labels to measure the accuracy on, every 50 batches.

    Attributes:
        batches: How many it has trained on.
        accuracy: On the held-out samples, 0 to 1, when it was last measured.
        failure: What ended its training, if it was not `stop`.

    Example:
        >>> trainer = Trainer(Course(trainer_id="a", learning_rate=0.1, hidden=()), held_out)  # doctest: +SKIP
        >>> trainer.start(batches)  # doctest: +SKIP
        >>> trainer.accuracy  # doctest: +SKIP
        0.87
    """

    def __init__(self, settings: TrainerSettings, held_out: tuple[Floats, Labels]) -> None:
        self.settings = settings
        self.batches = 0
        self.accuracy = 0.0
        self.failure: Exception | None = None
        self._held_out = held_out
        self._model = Classifier(
            inputs=held_out[0].shape[1], classes=10, hidden=settings.hidden, learning_rate=settings.learning_rate
        )
        self._stopped = threading.Event()
        self._ended = threading.Event()

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the model's layers, from the inputs to the classes."""
        return self._model.widths

    def start(self, batches: Iterable[tuple[Floats, Labels]]) -> None:
        """Begin to train on batches of (samples, labels), in a thread of its own."""
        # A daemon: a second Ctrl-C must be able to end the process in the middle of a read.
        threading.Thread(
            target=self._run, args=(batches,), name=f"trainer {self.settings.trainer_id}", daemon=True
        ).start()

    def stop(self) -> None:
        """Ask the thread to end after its present batch."""
        self._stopped.set()

    def wait(self, seconds: float) -> bool:
        """Wait until the thread has ended, for so long at most; whether it has."""
        return self._ended.wait(seconds)

    def _run(self, batches: Iterable[tuple[Floats, Labels]]) -> None:
        try:
            self._train(batches)
        except Exception as failure:  # noqa: BLE001 - raised again by whoever watches this trainer
            self.failure = failure
        finally:
            self._ended.set()

    def _train(self, batches: Iterable[tuple[Floats, Labels]]) -> None:
        for samples, labels in batches:
            if self._stopped.is_set():
                return
            self._model.learning_rate = np.float32(self.settings.learning_rate / (1 + self.batches / HALF_RATE_AFTER))
            self._model.train(samples, labels)
            self.batches += 1
            if self.batches % EVALUATE_EVERY == 0:
                self.accuracy = self._model.accuracy(*self._held_out)
        raise FailedPreconditionError(
            f"the data of the trainer {self.settings.trainer_id} ended after {self.batches} batches",
            did="its training was ended",
            hint="train on a dataset that repeats",
        )

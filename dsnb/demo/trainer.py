"""One trainer of the demo: a thread that reads batches from the service and trains a classifier until it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from dsnb.demo.model import Classifier, Floats, Labels
from dsnb.errors import FailedPreconditionError

EVALUATE_EVERY = 25
HALF_RATE_AFTER = 200
"""After this many batches the learning rate has dropped to one half; after twice as many, to one third."""


class TrainerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in which the demo's trainers differ.

    Attributes:
        trainer_id: The trainer's name in the cross-trainer cache.
        learning_rate: The initial learning rate.
        hidden: The widths of the model's hidden layers. Wider layers make each step slower.
        step_s: How long a step takes at least, in seconds: the speed of the machine should not decide which trainer of
            the demo is the fast one, and by how much.
        on_lag: What happens to elements that leave the window before it has read them, as in `CrossTrainerCache`.
    """

    trainer_id: str
    learning_rate: float
    hidden: tuple[int, ...]
    step_s: float = 0.0
    on_lag: Literal["skip", "wait", "spill"] = "skip"


class Trainer:
    """A thread that trains on batches until it is stopped, and reports its progress.

    Args:
        settings: What to train, and how fast.
        held_out: Samples and labels on which the accuracy is measured every 25 batches.

    Attributes:
        batches: The number of batches trained on.
        accuracy: The best measured accuracy on the held-out samples, 0 to 1.
        failure: The error that ended training, or None.

    Example:
        >>> settings = TrainerSettings(trainer_id="a", learning_rate=0.1, hidden=())  # doctest: +SKIP
        >>> trainer = Trainer(settings, held_out)  # doctest: +SKIP
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
        """Start to train on batches of (samples, labels), in a new thread."""
        # A daemon thread: a second Ctrl-C must be able to end the process in the middle of a read.
        threading.Thread(
            target=self._run, args=(batches,), name=f"trainer {self.settings.trainer_id}", daemon=True
        ).start()

    def stop(self) -> None:
        """Ask the thread to end after its current batch."""
        self._stopped.set()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the thread to end; return whether it has."""
        return self._ended.wait(seconds)

    def _run(self, batches: Iterable[tuple[Floats, Labels]]) -> None:
        try:
            self._train(batches)
        except Exception as failure:  # noqa: BLE001 - raised again in the thread that watches this trainer
            self.failure = failure
        finally:
            self._ended.set()

    def _train(self, batches: Iterable[tuple[Floats, Labels]]) -> None:
        for samples, labels in batches:
            if self._stopped.is_set():
                return
            self._model.learning_rate = np.float32(self.settings.learning_rate / (1 + self.batches / HALF_RATE_AFTER))
            began = time.monotonic()
            self._model.train(samples, labels)
            self.batches += 1
            if self.batches % EVALUATE_EVERY == 0:
                self.accuracy = max(self.accuracy, self._model.accuracy(*self._held_out))
            self._stopped.wait(max(0.0, began + self.settings.step_s - time.monotonic()))
        raise FailedPreconditionError(
            f"the data of the trainer {self.settings.trainer_id} ended after {self.batches} batches",
            did="its training has stopped",
            hint="train on a dataset that repeats",
        )

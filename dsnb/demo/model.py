"""A small classifier in NumPy, trained by plain stochastic gradient descent: what the demo's trainers train."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Labels = NDArray[np.integer]


class Classifier:
    """A softmax classifier, with hidden layers of rectified units if asked for.

    Args:
        inputs: Numbers in one sample.
        classes: Labels are 0 to `classes - 1`.
        hidden: The width of each hidden layer; none makes it softmax regression.
        learning_rate: The step of gradient descent.
        seed: Of the first weights.

    Example:
        >>> model = Classifier(inputs=64, classes=10, hidden=(32,), learning_rate=0.1)
        >>> loss = model.train(np.zeros((8, 64), np.float32), np.zeros(8, np.int64))
        >>> round(loss, 2)
        2.3
    """

    def __init__(
        self, *, inputs: int, classes: int, hidden: Sequence[int] = (), learning_rate: float, seed: int = 0
    ) -> None:
        self.learning_rate = np.float32(learning_rate)
        self.widths = widths = (inputs, *hidden, classes)
        random = np.random.default_rng(seed)
        self.weights = [_first_weights(random, rows, columns) for rows, columns in pairwise(widths)]
        self.biases = [np.zeros(columns, np.float32) for columns in widths[1:]]

    def train(self, samples: Floats, labels: Labels) -> float:
        """Take one step down the gradient of a batch.

        Args:
            samples: (batch, inputs), float32.
            labels: (batch,), integers.

        Returns:
            The mean cross-entropy of the batch before the step.
        """
        layers = self._forward(samples)
        chances = _softmax(layers[-1])
        picked = np.arange(len(labels)), labels
        loss = -float(np.log(chances[picked] + 1e-9).mean())
        chances[picked] -= 1
        self._descend(layers, chances / np.float32(len(labels)))
        return loss

    def predict(self, samples: Floats) -> Labels:
        """The most likely label of each sample."""
        return np.asarray(self._forward(samples)[-1].argmax(axis=1))

    def accuracy(self, samples: Floats, labels: Labels) -> float:
        """The part of the samples whose label is predicted right, 0 to 1."""
        return float((self.predict(samples) == labels).mean())

    def _forward(self, samples: Floats) -> list[Floats]:
        """What goes into each layer, and the last one's output."""
        layers = [samples]
        for weights, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            layers.append(np.maximum(layers[-1] @ weights + bias, 0))
        layers.append(layers[-1] @ self.weights[-1] + self.biases[-1])
        return layers

    def _descend(self, layers: list[Floats], gradient: Floats) -> None:
        for index in reversed(range(len(self.weights))):
            entering = layers[index]
            # Before the weights move: the layer below was scored by the old ones.
            below = (gradient @ self.weights[index].T) * (entering > 0) if index else gradient
            self.weights[index] -= self.learning_rate * (entering.T @ gradient)
            self.biases[index] -= self.learning_rate * gradient.sum(axis=0)
            gradient = below


def _first_weights(random: np.random.Generator, rows: int, columns: int) -> Floats:
    return random.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32)


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)

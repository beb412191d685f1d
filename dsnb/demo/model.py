"""The classifier that the demo's trainers train: NumPy, with plain stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Labels = NDArray[np.integer]


class Classifier:
    """A softmax classifier with optional hidden layers of rectified linear units.

    Args:
        inputs: The number of features of a sample.
        classes: The number of classes; labels are 0 to `classes - 1`.
        hidden: The width of each hidden layer; empty for softmax regression.
        learning_rate: The step size of gradient descent.
        seed: The seed of the initial weights.

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
        """Take one gradient step on a batch.

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
        """Return the most likely label of each sample."""
        return np.asarray(self._forward(samples)[-1].argmax(axis=1))

    def accuracy(self, samples: Floats, labels: Labels) -> float:
        """Return the fraction of samples whose label is predicted correctly, 0 to 1."""
        return float((self.predict(samples) == labels).mean())

    def _forward(self, samples: Floats) -> list[Floats]:
        """Return the input of each layer, and the output of the last one."""
        layers = [samples]
        for weights, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            layers.append(np.maximum(layers[-1] @ weights + bias, 0))
        layers.append(layers[-1] @ self.weights[-1] + self.biases[-1])
        return layers

    def _descend(self, layers: list[Floats], gradient: Floats) -> None:
        for index in reversed(range(len(self.weights))):
            entering = layers[index]
            # Compute the gradient of the layer below first: it needs the weights as they were in the forward pass.
            below = (gradient @ self.weights[index].T) * (entering > 0) if index else gradient
            self.weights[index] -= self.learning_rate * (entering.T @ gradient)
            self.biases[index] -= self.learning_rate * gradient.sum(axis=0)
            gradient = below


def _first_weights(random: np.random.Generator, rows: int, columns: int) -> Floats:
    return random.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32)


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)

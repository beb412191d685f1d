"""The classifier learns what can be learned, and its gradient is the derivative of its loss."""

from __future__ import annotations

import numpy as np
import pytest

from dsnb.demo.model import Classifier


def circles(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points inside a circle (label 0) and around it (label 1): no straight line tells them apart."""
    random = np.random.default_rng(seed)
    angles, labels = random.uniform(0, 2 * np.pi, count), random.integers(0, 2, count)
    radii = 0.5 + labels + random.normal(0, 0.05, count)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).astype(np.float32), labels


def trained(hidden: tuple[int, ...]) -> Classifier:
    model = Classifier(inputs=2, classes=2, hidden=hidden, learning_rate=0.3)
    for step in range(400):
        model.train(*circles(32, seed=step))
    return model


def test_it_learns_what_is_not_linear() -> None:
    assert trained(hidden=(32,)).accuracy(*circles(500, seed=10_000)) > 0.97


def test_softmax_alone_does_not() -> None:
    assert trained(hidden=()).accuracy(*circles(500, seed=10_000)) < 0.8


def test_a_step_lowers_the_loss_of_its_own_batch() -> None:
    model = Classifier(inputs=2, classes=2, hidden=(8,), learning_rate=0.05)
    samples, labels = circles(64, seed=1)

    losses = [model.train(samples, labels) for _ in range(50)]

    assert losses[-1] < losses[0]


@pytest.mark.parametrize("hidden", [(), (5,), (6, 4)])
def test_a_step_goes_down_the_numerical_gradient(hidden: tuple[int, ...]) -> None:
    samples, labels = circles(16, seed=2)
    model = Classifier(inputs=2, classes=2, hidden=hidden, learning_rate=1.0, seed=3)
    before = [weights.copy() for weights in model.weights]
    wanted = [numerical_gradient(model, layer, samples, labels) for layer in range(len(before))]

    model.train(samples, labels)

    for old, new, gradient in zip(before, model.weights, wanted, strict=True):
        np.testing.assert_allclose(old - new, gradient, atol=1e-5)


def numerical_gradient(model: Classifier, layer: int, samples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    # In double precision, so that the change can be too small to push a unit over its kink.
    weights = [matrix.astype(np.float64) for matrix in model.weights]
    gradient = np.zeros_like(weights[layer])
    for place in np.ndindex(*gradient.shape):
        kept = weights[layer][place]
        losses = []
        for change in (1e-6, -1e-6):
            weights[layer][place] = kept + change
            losses.append(cross_entropy(weights, samples, labels))
        weights[layer][place] = kept
        gradient[place] = (losses[0] - losses[1]) / 2e-6
    return gradient


def cross_entropy(weights: list[np.ndarray], samples: np.ndarray, labels: np.ndarray) -> float:
    layer = samples.astype(np.float64)
    for matrix in weights[:-1]:
        layer = np.maximum(layer @ matrix, 0)
    scores = layer @ weights[-1]
    picked = scores[np.arange(len(labels)), labels]
    return float((np.log(np.exp(scores).sum(axis=1)) - picked).mean())


def test_predictions_are_labels() -> None:
    model = Classifier(inputs=4, classes=3, learning_rate=0.1)

    predicted = model.predict(np.zeros((5, 4), np.float32))

    assert predicted.shape == (5,)
    assert set(predicted) <= {0, 1, 2}

from __future__ import annotations

import pytest

from tools.check_demo import problems


def figures(produced: int = 100, accuracy: float = 0.95, count: int = 2) -> dict[str, object]:
    trainer = {"trainer_id": "t", "accuracy": accuracy, "elements": 90, "lag": 10}
    return {"elements_produced": produced, "target_accuracy": 0.88, "trainers": [trainer] * count}


def test_good_figures_pass() -> None:
    assert problems(figures()) == []


@pytest.mark.parametrize(
    "result,told",
    [
        (figures(produced=121), "121 elements produced, but a trainer consumed or has to read 100"),
        (figures(produced=79), "79 elements produced"),
        (figures(accuracy=0.87), "t has an accuracy of 0.87, and the aim is 0.88"),
        (figures(count=1), "1 trainers instead of two"),
    ],
)
def test_bad_figures_are_told(result: dict[str, object], told: str) -> None:
    assert told in "; ".join(problems(result))

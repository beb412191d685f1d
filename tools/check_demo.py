"""Checks what `dsnb demo --json` printed against what the demo promises.

python tools/check_demo.py demo.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MAX_SHARING_DIFFERENCE = 0.2
"""How far what was produced may lie from what a trainer consumed or still has to read."""


def problems(result: dict[str, object]) -> list[str]:
    """What is wrong with the figures."""
    produced, trainers, target = result["elements_produced"], result["trainers"], result["target_accuracy"]
    assert isinstance(produced, int)
    assert isinstance(target, float)
    assert isinstance(trainers, list)
    found = [
        f"{trainer['trainer_id']} has an accuracy of {trainer['accuracy']}, and the aim is {target}"
        for trainer in trainers
        if trainer["accuracy"] < target
    ]
    if len(trainers) != 2:
        found.append(f"{len(trainers)} trainers instead of two")
    most = max(trainer["elements"] + trainer["lag"] for trainer in trainers)
    if abs(produced - most) > MAX_SHARING_DIFFERENCE * most:
        found.append(f"{produced} elements produced, but a trainer consumed or has to read {most}")
    return found


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    print(text)
    sys.exit("; ".join(problems(json.loads(text))) or 0)

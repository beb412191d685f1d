"""The examples of docs/random_access.md run as printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dsnb
from tests.support.requires import require_peer

torch = require_peer("torch")
datasets = require_peer("datasets")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "docs" / "random_access.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def load(_name: str, split: str) -> Any:
    """A small dataset in the place of the one that the page downloads."""
    return datasets.Dataset.from_dict({"text": ["a b", "a", "b c d"], "label": [0, 1, 0]}, split=split)


def tokenize(batch: Any) -> Any:
    return {"tokens": [[ord(word) for word in text.split()] for text in batch["text"]]}


def test_each_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.arange(6).reshape(3, 2))
    names: dict[str, Any] = {
        "__name__": "page", "dsnb": dsnb, "np": np, "datasets": SimpleNamespace(load_dataset=load),
        "tokenize": tokenize, "read_image": lambda path, label: (len(path), label),
    }  # fmt: skip
    elements = []
    for example in EXAMPLES:
        for line in re.split(r"\n(?=ds = )", example):  # each makes a dataset of its own
            exec(compile(line, str(PAGE), "exec"), names)
            if line.startswith("ds = "):
                elements.append(list(names["ds"]))
    assert names["images"].shape[1:] == (28, 28)
    assert [len(read) for read in elements] == [1, 2, 3]
    (batch,) = elements[0]
    assert batch["tokens"].shape == (3, 3)

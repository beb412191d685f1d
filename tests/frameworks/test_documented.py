"""The examples of docs/pytorch.md run exactly as printed, and do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from tests.frameworks.small_model import batches
from tests.support.requires import require_peer

torch = require_peer("torch")
torch.set_num_threads(1)  # its threads wait for each other by spinning, which takes minutes on a busy machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # importing a framework takes half a minute on a busy machine
    pytest.mark.filterwarnings("default"),  # theirs
]

PAGE = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that the page's first example defines, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    names: dict[str, Any] = {"__name__": "page", "torch": torch}
    run("data", names)
    with names["svc"]:
        yield names
    names.clear()  # the dataset keeps connections for its next epoch


def run(example: str, names: dict[str, Any]) -> None:
    exec(compile(EXAMPLES[example], f"docs/pytorch.md, {example}", "exec"), names)


def loss_of(model: Any) -> float:
    with torch.no_grad():
        return max(float(((model(x) - y) ** 2).mean()) for x, y in batches().iter_torch())


def test_each_example_is_run_by_a_test_of_this_file() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in EXAMPLES if f'"{name}"' not in text] == []
    assert PAGE.count("```python") == len(EXAMPLES)


@pytest.mark.parametrize("example", ["torch_dataset", "hugging_face_dataset", "parquet"])
def test_ten_lines_train_on_a_dataset_that_is_there(example: str) -> None:
    code = EXAMPLES[example].partition("keepdim=True)\n")[2] or EXAMPLES[example]  # the class is the user's already
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_a_loop_of_pytorch_learns_and_continues_in_the_middle_of_an_epoch(page: dict[str, Any]) -> None:
    run("pytorch", page)
    assert loss_of(page["model"]) < 0.05
    run("resume", page)
    assert page["left"] == 11


def test_a_dataset_of_torch_and_one_of_hugging_face_train_a_model(page: dict[str, Any]) -> None:
    require_peer("datasets")
    run("torch_dataset", page)
    assert loss_of(page["model"]) < 0.05
    run("hugging_face_dataset", page)
    assert loss_of(page["model"]) < 0.05


def test_a_folder_of_parquet_files_trains_a_model(page: dict[str, Any]) -> None:
    arrow = require_peer("pyarrow")
    parquet = require_peer("pyarrow.parquet")
    Path("data").mkdir()
    for number in range(4):
        a, b = np.random.default_rng(number).normal(size=(2, 64)).astype(np.float32)
        table = arrow.table({"a": a, "b": b, "target": a + b})
        parquet.write_table(table, f"data/{number}.parquet", row_group_size=16)
    run("parquet", page)
    assert page["model"].weight.ravel().tolist() == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_frameworks_on_torch_learn(page: dict[str, Any], framework: str) -> None:
    require_peer(framework)
    run(framework, page)
    model = page["module"].model if framework == "lightning" else page["model"]
    assert loss_of(model) < 0.05


def test_the_trainer_of_hugging_face_runs(page: dict[str, Any]) -> None:
    require_peer("transformers")
    run("transformers", page)
    assert page["result"].global_step == 24


def test_keras_learns(page: dict[str, Any]) -> None:
    require_peer("keras")
    run("keras", page)
    assert page["history"].history["loss"][-1] < 0.05


def test_jax_learns(page: dict[str, Any]) -> None:
    require_peer("jax")
    run("jax", page)
    assert page["weights"].ravel().tolist() == pytest.approx([1.0] * 4, abs=0.05)


def test_two_processes_of_torchrun_take_the_same_number_of_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(EXAMPLES["torchrun"])
    with dsnb.start(workers=2, name="torchrun", isolation="process") as service:
        environment = {**os.environ, "SERVICE": service.target, "OMP_NUM_THREADS": "1"}
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=200, check=False, env=environment
        )
    steps = dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith("rank "))
    assert len(steps) == 4, done.stdout + done.stderr
    for epoch in (0, 1):
        assert steps[f"rank 0, epoch {epoch}"] == steps[f"rank 1, epoch {epoch}"]

"""The recipes for experiment trackers in docs/watching.md run exactly as printed, without a network.

Each runs in a process of its own, because trackers start threads and processes that stay.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requires import require_peer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (Path(__file__).parents[2] / "docs" / "watching.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## In an experiment tracker\n")[2].partition("\n## ")[0]
METRICS, WANDB, MLFLOW, TENSORBOARD = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
AROUND = """
import dsnb, sys
{imports}
train = float
with dsnb.start(workers=1) as svc:
    shared = dsnb.CrossTrainerCache("lr=0.1")
    read = dsnb.distribute("parallel_epochs", svc, job_name="train", cross_trainer_cache=shared)
    dataset = dsnb.Dataset.range(250).apply(read)
    exec(sys.argv[1])
    exec(sys.argv[2])
"""
OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}


def run(recipe: str, imports: str, folder: Path) -> None:
    command = [sys.executable, "-c", AROUND.format(imports=imports), METRICS, recipe]
    environment = os.environ | OFFLINE | {"MLFLOW_TRACKING_URI": f"file://{folder}/runs"}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


def test_the_recipe_for_weights_and_biases_logs_offline(tmp_path: Path) -> None:
    require_peer("wandb")
    run(WANDB, "import wandb", tmp_path)
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert written.read_bytes().count(b"input/wait_share") >= 3


def test_the_recipe_for_mlflow_logs_into_files(tmp_path: Path) -> None:
    require_peer("mlflow")
    run(MLFLOW, "import mlflow", tmp_path)
    (values,) = tmp_path.glob("runs/*/*/metrics/input/elements")
    assert [line.split()[2] for line in values.read_text().splitlines()] == ["0", "100", "200"]
    (text,) = tmp_path.glob("runs/*/*/artifacts/dsnb_metrics.txt")
    assert "dsnb_job_elements_consumed_total" in text.read_text()


def test_the_recipe_for_tensorboard_writes_events(tmp_path: Path) -> None:
    require_peer("tensorboardX")
    run(TENSORBOARD, "from tensorboardX import SummaryWriter", tmp_path)
    (written,) = tmp_path.glob("runs/digits/events.out.tfevents.*")
    assert written.read_bytes().count(b"input/wait_share") == 3

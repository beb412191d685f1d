"""Two processes of a framework train in step on a prime number of rows, and go on behind a saved step."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import dsnb
from dsnb.notebook.service import DataService
from tests.support.processes import PythonProcess
from tests.support.requires import require_peer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # importing a framework takes half a minute on a busy machine
    pytest.mark.filterwarnings("default"),  # theirs
]

ROWS, RANKS, EPOCHS, SAVED = 53, 2, 2, 7
"""A prime number of rows; the step of the last epoch after which the position is saved."""
STEPS = -(-ROWS // RANKS)

PRELUDE = f"""
import json, os, sys, warnings
import numpy as np
import dsnb

FILE = os.environ["STATE"]
rows = dsnb.Dataset.range({ROWS}).map(lambda x: np.full(4, x, np.float32))

def ranks():
    return rows.apply(dsnb.distribute("distributed_epoch", os.environ["SERVICE"], job_name=os.environ["JOB"],
                                      rank="auto", at_end=os.environ.get("AT_END", "repeat")))

def show(rank, got):
    sys.stdout.write(f"rank {{rank}}: {{json.dumps([int(x) for x in got])}}\\n")
    sys.stdout.flush()
"""

TORCH = (
    PRELUDE
    + f"""
import torch
torch.distributed.init_process_group("gloo")
rank, loader, got = torch.distributed.get_rank(), ranks().to_torch(), []
if os.path.exists(f"{{FILE}}{{rank}}"):
    loader.load_state_dict(torch.load(f"{{FILE}}{{rank}}"))
    got += [float(row[0]) for row in loader]
else:
    for epoch in range({EPOCHS}):
        for step, row in enumerate(loader, 1):
            torch.distributed.barrier()  # all ranks take each step together
            got.append(float(row[0]))
            if (epoch, step) == ({EPOCHS - 1}, {SAVED}):
                torch.save(loader.state_dict(), f"{{FILE}}{{rank}}")
                break
show(rank, got)
torch.distributed.destroy_process_group()
"""
)

ACCELERATE = (
    PRELUDE
    + f"""
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6))
rank, loader, got = accelerator.process_index, ranks().to_torch(), []  # not prepared: it has the rows of this rank
resuming = os.path.exists(f"{{FILE}}0")
if resuming:
    loader.load_state_dict(torch.load(f"{{FILE}}0"))  # the position of any rank is good for all
for epoch in range(1 if resuming else {EPOCHS}):
    for step, row in enumerate(loader, 1):
        got.append(float(row[0]))
        optimizer.zero_grad()
        accelerator.backward(model(row).sum())  # waits for the gradients of the other rank
        optimizer.step()
        if not resuming and (epoch, step) == ({EPOCHS - 1}, {SAVED}):
            if rank == 0:
                torch.save(loader.state_dict(), f"{{FILE}}0")
            break
show(rank, got)
accelerator.end_training()
"""
)

LIGHTNING = (
    PRELUDE
    + f"""
import lightning, torch
warnings.simplefilter("ignore")

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.got = torch.nn.Linear(4, 1), []

    def train_dataloader(self):
        return ranks().to_torch()  # here, where the process knows its rank

    def training_step(self, row, _):
        self.got.append(float(row[0]))
        return self.model(row).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

    def on_train_batch_end(self, *_):
        if self.trainer.global_step == {(EPOCHS - 1) * STEPS + SAVED} and not resuming and AT_END != "drop":
            self.trainer.save_checkpoint(FILE)
            self.trainer.should_stop = True

resuming, AT_END = os.path.exists(FILE), os.environ.get("AT_END")
module = Module()
trainer = lightning.Trainer(
    accelerator="cpu", devices={RANKS}, strategy="ddp", max_epochs={EPOCHS}, min_steps=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
)
trainer.fit(module, ckpt_path=FILE if resuming else None, weights_only=False)
show(trainer.global_rank, module.got)
"""
)

JAX = (
    PRELUDE
    + f"""
import jax
jax.distributed.initialize(os.environ["COORDINATOR"], {RANKS}, int(os.environ["PROCESS"]))
rank, got, file = jax.process_index(), [], f"{{FILE}}{{jax.process_index()}}"
if os.path.exists(file):
    elements = ranks().iter_jax()
    elements.load_state_dict(json.load(open(file)))
    got += [float(row[0]) for row in elements]
else:
    dataset = ranks()
    for epoch in range({EPOCHS}):
        elements = dataset.iter_jax()
        for step, row in enumerate(elements, 1):
            got.append(float(row[0]))
            if (epoch, step) == ({EPOCHS - 1}, {SAVED}):
                json.dump(elements.state_dict(), open(file, "w"))
                break
show(rank, got)
jax.distributed.shutdown()
"""
)


@pytest.fixture
def service() -> Iterator[DataService]:
    with dsnb.start(workers=2, name="ranks", isolation="process") as service:
        yield service


def environment(service: DataService, folder: Path, job: str) -> dict[str, str]:
    return {
        **os.environ,
        "SERVICE": service.target,
        "STATE": str(folder / "state"),
        "JOB": job,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def rows_of(output: str) -> list[list[int]]:
    """What each rank got, from what they printed."""
    lines = sorted(line for line in output.splitlines() if line.startswith("rank "))
    assert len(lines) == RANKS, output
    return [[int(row) for row in line.partition("[")[2].rstrip("]").split(", ")] for line in lines]


def by_torchrun(code: str, env: dict[str, str], folder: Path) -> list[list[int]]:
    script = folder / "train.py"
    script.write_text(code)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), str(script)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return rows_of(done.stdout)


def check(before: list[list[int]], after: list[list[int]]) -> None:
    """All ranks took the same steps: two epochs of all rows, the second in two parts."""
    assert {len(rank) for rank in before} == {(EPOCHS - 1) * STEPS + SAVED}
    assert {len(rank) for rank in after} == {STEPS - SAVED}
    whole, begun = (
        Counter(row for rank in before for row in rank[part]) for part in (slice(STEPS), slice(STEPS, None))
    )
    assert (set(whole), whole.total()) == (set(range(ROWS)), STEPS * RANKS)
    rest = Counter(row for rank in after for row in rank)
    assert (set(begun | rest), (begun + rest).total()) == (set(range(ROWS)), STEPS * RANKS)


@pytest.mark.parametrize("code", [TORCH, ACCELERATE, LIGHTNING], ids=["torchrun", "accelerate", "lightning"])
def test_two_processes_take_the_same_steps_and_go_on_behind_a_saved_one(
    service: DataService, tmp_path: Path, code: str, request: pytest.FixtureRequest
) -> None:
    require_peer("torch")
    framework = request.node.callspec.id
    if framework != "torchrun":
        require_peer(framework)
    before = by_torchrun(code, environment(service, tmp_path, "first"), tmp_path)
    check(before, by_torchrun(code, environment(service, tmp_path, "second"), tmp_path))


def test_lightning_trains_on_each_whole_epoch_although_it_never_asks_for_the_end(
    service: DataService, tmp_path: Path
) -> None:
    require_peer("lightning")
    env = environment(service, tmp_path, "exact") | {"AT_END": "drop"}
    columns = by_torchrun(LIGHTNING, env, tmp_path)
    steps = ROWS // RANKS
    assert [len(rank) for rank in columns] == [EPOCHS * steps] * RANKS
    for epoch in range(EPOCHS):
        got = [row for rank in columns for row in rank[epoch * steps : (epoch + 1) * steps]]
        assert len(set(got)) == len(got) == steps * RANKS


def test_two_processes_of_jax_take_the_same_steps_and_go_on_behind_a_saved_one(
    service: DataService, tmp_path: Path
) -> None:
    require_peer("jax")

    def train(job: str) -> list[list[int]]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        env = {**environment(service, tmp_path, job), "COORDINATOR": coordinator, "JAX_PLATFORMS": "cpu"}
        with ExitStack() as stack:
            processes = [
                stack.enter_context(PythonProcess(["-c", JAX], env={**env, "PROCESS": str(rank)}))
                for rank in range(RANKS)
            ]
            for process in processes:
                assert process.wait_for_exit(timeout=280.0) == 0, process.describe()
            return rows_of("".join(process.stdout for process in processes))

    before = train("first")
    check(before, train("second"))

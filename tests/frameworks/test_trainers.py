"""Lightning, Accelerate, Hugging Face's Trainer and Keras train with the loader of `to_torch` as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.notebook.service import DataService
from tests.frameworks.small_model import batches, distributed
from tests.support.requires import require_peer

torch = require_peer("torch")
torch.set_num_threads(1)  # its threads wait for each other by spinning, which takes minutes on a busy machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # importing a framework takes half a minute on a busy machine
    pytest.mark.filterwarnings("default"),  # theirs
]

STEPS = 16


@pytest.fixture(scope="module")
def service() -> Iterator[DataService]:
    with dsnb.start(workers=2, name="trainers") as service:
        yield service


def loss_of(model: Any) -> float:
    """The mean squared error over all rows."""
    with torch.no_grad():
        return float(np.mean([float(((model(x) - y) ** 2).mean()) for x, y in batches().iter_torch()]))


# ---- Lightning


def lightning_module(lightning: Any) -> Any:
    class Regression(lightning.LightningModule):  # type: ignore[misc,name-defined]  # nothing is known of it here
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(4, 1)
            self.seen: list[float] = []

        def training_step(self, batch: Any, _: int) -> Any:
            x, y = batch
            self.seen += x[:, 0].tolist()
            return ((self.model(x) - y) ** 2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Regression()


def lightning_trainer(lightning: Any, **arguments: Any) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, **arguments},
    )


def test_lightning_trains_with_the_loader(service: DataService) -> None:
    lightning = require_peer("lightning")
    module = lightning_module(lightning)
    trainer = lightning_trainer(lightning, max_epochs=3)
    trainer.fit(module, distributed(service, "lightning").to_torch())
    assert trainer.global_step == 3 * STEPS
    assert loss_of(module.model) < 0.01


def test_a_checkpoint_of_lightning_holds_the_reading_position(tmp_path: Path) -> None:
    lightning = require_peer("lightning")
    saved = str(tmp_path / "step.ckpt")
    whole = lightning_module(lightning)
    lightning_trainer(lightning, max_epochs=1).fit(whole, batches().to_torch())

    class SaveAt(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                trainer.save_checkpoint(saved)
                trainer.should_stop = True

    begun = lightning_module(lightning)
    lightning_trainer(lightning, max_epochs=1, callbacks=[SaveAt()], min_steps=1).fit(begun, batches().to_torch())
    continued = lightning_module(lightning)
    trainer = lightning_trainer(lightning, max_epochs=1)
    trainer.fit(continued, batches().to_torch(), ckpt_path=saved, weights_only=False)
    assert trainer.global_step == STEPS
    assert begun.seen[: 5 * 16] + continued.seen == whole.seen


# ---- Accelerate


@pytest.mark.parametrize("dispatch", [False, None], ids=["dispatch_batches=False", "as it is"])
def test_accelerate_trains_with_the_loader(service: DataService, dispatch: Any) -> None:
    accelerate = require_peer("accelerate")
    configuration = accelerate.DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, distributed(service, f"{dispatch}").to_torch())
    steps = 0
    for _epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(((model(x) - y) ** 2).mean())
            optimizer.step()
            steps += 1
    assert steps == 3 * STEPS
    assert loss_of(model) < 0.01


# ---- Hugging Face


def test_the_trainer_of_hugging_face_trains_with_the_loader(service: DataService, tmp_path: Path) -> None:
    transformers = require_peer("transformers")

    class TrainerOnDsnb(transformers.Trainer):  # type: ignore[misc,name-defined]
        def get_train_dataloader(self) -> Any:
            return self.train_dataset

    tokens = np.random.default_rng(0).integers(0, 32, size=(64, 8))
    texts = dsnb.Dataset.from_tensor_slices({"input_ids": tokens, "labels": tokens})
    loader = texts.apply(dsnb.distribute("distributed_epoch", service, job_name="texts")).batch(8).to_torch()
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=48,
        learning_rate=0.03,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = TrainerOnDsnb(model=model, args=arguments, train_dataset=loader)
    result = trainer.train()
    assert result.global_step == 48
    assert result.training_loss < np.log(32)


# ---- Keras


def test_keras_trains_with_the_loader(service: DataService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = require_peer("keras")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    history = model.fit(distributed(service, "keras").to_torch(), epochs=3, verbose=0)
    assert history.history["loss"][-1] < 0.05
    assert history.epoch == [0, 1, 2]


# ---- plain torch, and a state beside a model's


def test_a_loop_of_torch_continues_in_the_middle_of_an_epoch(service: DataService, tmp_path: Path) -> None:
    def train(loader: Any, model: Any, steps: int) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen: list[float] = []
        for step, (x, y) in enumerate(loader, start=1):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            seen += x[:, 0].tolist()
            if step == steps:
                break
        return seen

    loader, model = distributed(service, "first").to_torch(), torch.nn.Linear(4, 1)
    before = train(loader, model, 6)
    torch.save({"model": model.state_dict(), "data": loader.state_dict()}, tmp_path / "state.pt")
    del loader
    state = torch.load(tmp_path / "state.pt")
    again = distributed(service, "second").to_torch()
    again.load_state_dict(json.loads(json.dumps(state["data"])))
    model.load_state_dict(state["model"])
    after = train(again, model, STEPS)
    expected = sorted(float(x[0]) for batch, _ in batches() for x in batch)
    assert sorted(before + after) == pytest.approx(expected)

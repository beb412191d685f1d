"""Each line of dsnb on the page for people who come from other loaders runs, and gives all rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from tests.support.cluster import Cluster
from tests.support.parquet import write_parquet
from tests.support.ports import unused_port
from tests.support.requires import require_peer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # importing a framework takes half a minute on a busy machine
    pytest.mark.filterwarnings("default"),  # theirs
]

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
OURS = "\n".join(row.split(" | ")[-1] for row in PAGE.splitlines() if row.startswith("| "))
LINES = sorted({code for code in re.findall(r"`([^`]+)`", OURS) if "(" in code})

ROWS = 64
PEERS = {"_torch(": "torch", "loader.": "torch", "load_dataset(": "datasets", "model.fit(": "keras", "_jax(": "jax"}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {"flat_map(f)": dsnb.Dataset.from_tensors, "filter(f)": lambda x: x >= 0}


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    """What the page takes as given: data of 64 rows in each form, and the names of new folders."""
    x = np.arange(float(ROWS), dtype=np.float32)
    with dsnb.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for value in x:
            writer.write(dsnb.serialize_example({"x": value}))
    ds = dsnb.Dataset.from_tensor_slices(x)
    return {
        "dsnb": dsnb, "x": x, "ds": ds, "a": ds, "b": ds, "it": iter(ds), "iterator": iter(ds), "i": 0, "n": 1,
        "rank": 0, "world_size": 1, "files": [str(tmp_path / "a.tfrecord")], "record": dsnb.serialize_example({"x": x}),
        "f": lambda element: element, "function": lambda: iter(x), "dataset": x.tolist(), "items": x.tolist(),
        "path": str(tmp_path / "saved"), "folder": str(tmp_path / "cache"), "name": "any",
    }  # fmt: skip


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start_service(names: dict[str, Any], opened: ExitStack, _folder: Path) -> None:
    names["svc"] = opened.enter_context(dsnb.start(workers=2, name="migration"))
    names["dataset_id"] = dsnb.register_dataset(names["svc"], names["ds"])


def write_a_file(names: dict[str, Any], _opened: ExitStack, folder: Path) -> None:
    names["path"] = write_parquet(folder / "a.parquet", {"a": names["x"], "b": names["x"]})


def make_rows(names: dict[str, Any], _opened: ExitStack, _folder: Path) -> None:
    rows = require_peer("datasets").Dataset.from_dict({"x": names["x"]})
    names["load_dataset"] = lambda _name: {"train": rows}


def begin_to_read(names: dict[str, Any], _opened: ExitStack, _folder: Path) -> None:
    for name in ("it", "iterator"):
        next(names[name])
    names["state"] = names["it"].state_dict()


def make_loader(names: dict[str, Any], _opened: ExitStack, _folder: Path) -> None:
    names["loader"] = names["ds"].to_torch()
    next(iter(names["loader"]))


def make_model(names: dict[str, Any], _opened: ExitStack, _folder: Path) -> None:
    names["ds"], names["model"] = pairs_and_model(names["x"])


PREPARED: dict[str, Callable[[dict[str, Any], ExitStack, Path], None]] = {
    "svc": start_service,
    "ParquetDataset(": write_a_file,
    "Dataset.load(": lambda names, _opened, _folder: names["ds"].save(names["path"]),
    "load_dataset(": make_rows,
    "state": begin_to_read,
    "loader.": make_loader,
    "model.fit(": make_model,
}
"""What lines that have such a part need, beside what `names` has."""

CHECKED: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    ".save(path)": lambda _result, names: rows_in(dsnb.Dataset.load(names["path"])) == ROWS,
    "it.load_state_dict(": lambda _result, names: rows_in(names["it"]) == ROWS - 1,
    "state_dict()": lambda result, _names: json.loads(json.dumps(result)) == result,
    "parse_example(": lambda result, _names: rows_in([result]) == ROWS,
    "model.fit(": lambda result, _names: result.history["loss"],
    "register_dataset(": lambda result, names: result == names["dataset_id"],
    "CrossTrainerCache(": lambda result, _names: result.trainer_id == "a",
    "svc.scale(": lambda _result, names: names["svc"].workers == 8,
    "svc.": lambda result, _names: str(result),
    "Server(": lambda result, _names: result.stop() is None,
    "dsnb.start(": lambda result, _names: result.stop() is None,
    ".cache(folder)": lambda result, names: rows_in(result) == ROWS and os.listdir(names["folder"]),
    "a.concatenate(b)": lambda result, _names: rows_in(result) == 2 * ROWS,
    "sample_from_datasets(": lambda result, _names: rows_in(result) == 2 * ROWS,
}
"""How to check what lines that have such a part give; all others give all rows."""


def prepare(line: str, names: dict[str, Any], opened: ExitStack, folder: Path) -> str:
    """Add what this line needs, and return it as an expression for this machine."""
    for part in (part for part in PEERS if part in line):
        require_peer(PEERS[part])
    names["f"] = next((function for part, function in FUNCTIONS.items() if part in line), names["f"])
    for part in (part for part in PREPARED if part in line):
        PREPARED[part](names, opened, folder)
    if "host:5050" in line:
        line = line.replace("host:5050", opened.enter_context(Cluster(0)).address)
    line = line.replace("port=5050", f"port={unused_port()}").replace('device="cuda"', 'device="cpu"')
    return f"ds{line}" if line.startswith(".") else line


def pairs_and_model(x: Any) -> Any:
    keras = require_peer("keras")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return dsnb.Dataset.from_tensor_slices((x[:, None] / ROWS, x[:, None] / ROWS)).batch(16), model


def rows_in(elements: Any) -> int:
    """How many rows all elements have together: a row is a number, a record, or an element of a column."""
    count = 0
    for element in islice(elements, 10 * ROWS):
        column = next(iter(element.values())) if isinstance(element, dict) else element
        count += 1 if isinstance(column, (bytes, float)) else np.asarray(column).size
    return count


def test_no_line_of_the_page_leaves_anything_out() -> None:
    assert len(LINES) > 40
    assert [line for line in LINES if "..." in line] == []


@pytest.mark.parametrize("line", LINES)
def test_each_line_runs_and_gives_all_rows(
    line: str, names: dict[str, Any], opened: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("KERAS_BACKEND", "torch")):
        monkeypatch.setenv(variable, value)
    result = eval(prepare(line, names, opened, tmp_path), names)
    if line.startswith("dsnb.distribute("):
        result = names["ds"].apply(result)
    check = next((check for part, check in CHECKED.items() if part in line), None)
    assert check(result, names) if check is not None else rows_in(result) == ROWS

"""What each operation of the pipeline engine costs, in nanoseconds of CPU time an element.

Each row is a short pipeline, run without a service: its stages are pulled in runs, as a worker does. The rows are run
interleaved, several times; the least CPU time counts, since other work on the machine can only add to it. "Alone" is
the row's time less that of the same pipeline without its last operation.

    python benchmarks/engine.py [--runs 7] [--only WORD] [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import dsnb
from dsnb.elements.frame import frames_of
from dsnb.pipeline.engine.run_length import MAX_RUN_LENGTH
from dsnb.pipeline.engine.stage import Run
from dsnb.pipeline.operation import BuildContext

COUNT = 200_000
IMAGES = 4_000

MakeDataset = Callable[[], dsnb.Dataset]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One pipeline.

    Attributes:
        make: Makes the pipeline.
        baseline: The name of the row that is this one without its last operation; empty for a source.
        count: Elements that count: those that enter the last operation.
        read: How it is read.
    """

    make: MakeDataset
    baseline: str = ""
    count: int = COUNT
    read: Callable[[dsnb.Dataset], None]


def pull_all(dataset: dsnb.Dataset) -> None:
    """Pull all of a pipeline, in the longest runs that a worker asks for."""
    for _ in runs_of(dataset):
        pass


def lay_out_all(dataset: dsnb.Dataset) -> None:
    """Lay all of a pipeline out as frames."""
    schema = None
    for run in runs_of(dataset):
        for frame in frames_of(run, schema):
            if isinstance(frame, Exception):
                raise frame
            schema = schema or frame.schema


def iterate_all(dataset: dsnb.Dataset) -> None:
    """Iterate in this process."""
    for _ in dataset:
        pass


def runs_of(dataset: dsnb.Dataset) -> Iterator[Run]:
    """The runs of a pipeline's last stage."""
    stage = dataset.operation.build(BuildContext(entropy=1))
    try:
        while len(run := stage.pull(MAX_RUN_LENGTH)):
            yield run
    finally:
        stage.close()


def rows() -> dict[str, Row]:
    """All rows, sources first."""
    numbers = dsnb.Dataset.range(COUNT)
    square = numbers.map(_square)
    images = dsnb.Dataset.from_tensor_slices(np.random.default_rng(0).random((IMAGES, 28, 28), np.float32))
    drawn = images.map(_double)
    pairs = dsnb.Dataset.from_tensor_slices((np.arange(COUNT), np.arange(COUNT)))
    dicts = dsnb.Dataset.from_tensor_slices({"x": np.arange(COUNT), "y": np.arange(COUNT)})
    batches = dsnb.Dataset.from_tensor_slices(np.arange(COUNT).reshape(-1, 100))
    pair_batches = dsnb.Dataset.from_tensor_slices((np.arange(COUNT).reshape(-1, 100),) * 2)
    found: dict[str, Row] = {}

    def add(name: str, dataset: dsnb.Dataset, before: str = "", count: int = COUNT, read: object = pull_all) -> None:
        found[name] = Row(make=lambda: dataset, baseline=before, count=count, read=read)  # type: ignore[arg-type]  # one of the three

    add("range", numbers)
    add("slices, pairs", pairs)
    add("slices, dicts", dicts)
    add("slices, 28x28", images, count=IMAGES)
    add("range, map", square, "range")
    add("pairs, map", pairs.map(_sum), "slices, pairs")
    add("dicts, map", dicts.map(_sum_of), "slices, dicts")
    add("28x28, map", drawn, "slices, 28x28", IMAGES)
    add("map, map", square.map(_identity), "range, map")
    add("map, filter", square.filter(_even), "range, map")
    for name, operation in _SINGLE_INPUT_OPERATIONS.items():
        add(f"range, {name}", operation(numbers), "range")
        add(f"map, {name}", operation(square), "range, map")
    add("pairs, shuffle", pairs.shuffle(1000, seed=1), "slices, pairs")
    add("28x28, shuffle", images.shuffle(1000, seed=1), "slices, 28x28", IMAGES)
    add("pairs, batch", pairs.batch(32), "slices, pairs")
    add("dicts, batch", dicts.batch(32), "slices, dicts")
    add("28x28, batch", images.batch(32), "slices, 28x28", IMAGES)
    add("28x28, map, batch", drawn.batch(32), "28x28, map", IMAGES)
    add("28x28, map, shuffle, batch", drawn.shuffle(1000, seed=1).batch(32), "28x28, map", IMAGES)
    add("rows of 100, unbatch", batches.unbatch())
    add("rows of 100, map, unbatch", batches.map(_identity).unbatch())
    add("pairs of 100, unbatch", pair_batches.unbatch())
    add("range, zip with itself", dsnb.Dataset.zip((numbers, numbers)))
    add("range, interleave of 100", dsnb.Dataset.range(COUNT // 100).interleave(_hundred))
    add("range, flat_map of 100", dsnb.Dataset.range(COUNT // 100).flat_map(_hundred))
    add("range to frames", numbers, "range", read=lay_out_all)
    add("map to frames", square, "range, map", read=lay_out_all)
    add("pairs to frames", pairs, "slices, pairs", read=lay_out_all)
    add("28x28, map to frames", drawn, "28x28, map", IMAGES, lay_out_all)
    add("range iterated", numbers, "range", read=iterate_all)
    add("map iterated", square, "range, map", read=iterate_all)
    add("pairs iterated", pairs, "slices, pairs", read=iterate_all)
    add("28x28, map iterated", drawn, "28x28, map", IMAGES, iterate_all)
    return found


_SINGLE_INPUT_OPERATIONS: dict[str, Callable[[dsnb.Dataset], dsnb.Dataset]] = {
    "take": lambda dataset: dataset.take(COUNT),
    "skip": lambda dataset: dataset.skip(1),
    "repeat": lambda dataset: dataset.repeat(1),
    "shard": lambda dataset: dataset.shard(2, 0),
    "enumerate": lambda dataset: dataset.enumerate(),
    "shuffle": lambda dataset: dataset.shuffle(1000, seed=1),
    "batch": lambda dataset: dataset.batch(32),
    "concatenate": lambda dataset: dataset.concatenate(dsnb.Dataset.range(1)),
    "prefetch": lambda dataset: dataset.prefetch(4096),
    "window": lambda dataset: dataset.window(1000),
    "rebatch": lambda dataset: dataset.batch(100).rebatch(32),
    "unique": lambda dataset: dataset.unique(),
    "take_while": lambda dataset: dataset.take_while(_always),
    "scan": lambda dataset: dataset.scan(0, lambda state, x: (state, x)),
}


def _square(x: object) -> object:
    return x * x  # type: ignore[operator]  # numbers


def _double(x: object) -> object:
    return x * 2 + 1  # type: ignore[operator]  # numbers


def _identity(x: object) -> object:
    return x


def _hundred(_: object) -> dsnb.Dataset:
    return dsnb.Dataset.range(100)


def _always(_: object) -> bool:
    return True


def _even(x: object) -> object:
    return x % 2 == 0  # type: ignore[operator]  # numbers


def _sum(x: object, y: object) -> object:
    return x + y  # type: ignore[operator]  # numbers


def _sum_of(row: dict[str, object]) -> object:
    return row["x"] + row["y"]  # type: ignore[operator]  # numbers


def measure(chosen: dict[str, Row], runs: int) -> dict[str, float]:
    """The least CPU nanoseconds an element of each row."""
    least = dict.fromkeys(chosen, float("inf"))
    for _ in range(runs):
        for name, row in chosen.items():
            dataset = row.make()
            began = time.process_time_ns()
            row.read(dataset)
            least[name] = min(least[name], (time.process_time_ns() - began) / row.count)
    return least


def main() -> None:
    """Run all rows and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="passes of each row (default: 7)")
    parser.add_argument("--only", default="", help="rows with this in their names")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    everything = rows()
    wanted = {name for name in everything if options.only in name}
    wanted |= {everything[name].baseline for name in wanted} - {""}
    least = measure({name: row for name, row in everything.items() if name in wanted}, options.runs)
    alone = {name: ns - least.get(everything[name].baseline, 0.0) for name, ns in least.items()}
    if options.json:
        print(json.dumps({name: {"ns": ns, "alone": alone[name]} for name, ns in least.items()}, indent=2))
        return
    print(f"Python {platform.python_version()}, NumPy {np.__version__}: CPU ns an element, least of {options.runs}")
    for name, ns in least.items():
        print(f"{name:32} {ns:10,.1f}   alone {alone[name]:10,.1f}")


if __name__ == "__main__":
    main()

"""Files in a store beside local ones, the balance of row groups over workers, and rows a second of Parquet readers.

The store is an HTTP server of this machine that takes 30 ms before it answers each request. Local and remote epochs are
read in turns, and the median of the ratios counts. There are short epochs, of which the first requests take a large
part, and four times longer ones. The processor time is that of the workers and of this process; the server's, which a
real store would not take from them, is shown apart. The balance is measured with row groups that take 0.1 s of waiting,
so that it does not depend on the number of cores; one of eight workers takes 0.3 s.

    python -m benchmarks.object_store [--turns 5] [--write]
    python -m benchmarks.object_store --only store        only one of the three parts
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dsnb
from benchmarks.environments import package_version, python_of
from benchmarks.sections import ROOT, machine, table, write_section
from tests.support.parquet import write_parquet
from tests.support.shards import shard

FILES, GROUPS, ROWS = 8, 8, 500
EPOCHS = (1, 4)
"""How many times each file is read in an epoch, under a name of its own each time."""
SIDE = 32
DELAY_S = 0.03
SERVER = """
import sys
from pathlib import Path
from tests.support.file_server import FileServer

with FileServer(Path(sys.argv[1]), delay_s=float(sys.argv[2]), keep_alive=True) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""
PEER = """
import sys, time

files, size = sys.argv[2:], int(sys.argv[1])
{prepare}
for _ in range(2):
    began = time.perf_counter()
    count = sum(len(batch["c00"]) for batch in {batches})
    print("RATE", count / (time.perf_counter() - began), flush=True)
"""
STREAMING = PEER.format(
    prepare="""
import datasets
rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True).with_format("numpy")
""",
    batches="rows.iter(size)",
)
RAY = PEER.format(
    prepare="""
import ray.data
ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
ray.data.DataContext.get_current().enable_progress_bars = False
rows = ray.data.read_parquet(files)
""",
    batches='rows.iter_batches(batch_size=size, batch_format="numpy")',
)


# ---- a store


@contextlib.contextmanager
def store(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a folder; yield its URL and the id of the server's process."""
    words = [sys.executable, "-c", SERVER, str(folder), str(DELAY_S)]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def write_images(folder: Path) -> None:
    """Write the same images as Parquet, TFRecord and tar files, and give each file several names."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        images = rng.integers(0, 256, (GROUPS * ROWS, SIDE * SIDE * 3), np.uint8)
        column = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(images.shape[1]), len(images), [None, pa.py_buffer(images.tobytes())]
        )
        write_parquet(folder / f"{number}.parquet", {"image": column}, ROWS, compression="none", use_dictionary=False)
        with dsnb.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for image in images:
                writer.write(image.tobytes())
        shard(folder / f"{number}.tar", [(f"{at:05}.raw", image.tobytes()) for at, image in enumerate(images)])
        for more in range(number + FILES, max(EPOCHS) * FILES, FILES):
            for kind in ("parquet", "tfrecord", "tar"):
                os.link(folder / f"{number}.{kind}", folder / f"{more}.{kind}")


def prepared(images: Any) -> np.ndarray[Any, Any]:
    """Smooth images and standardise them: about as much work for each byte as the decoding of JPEG files takes."""
    pixels: Any = np.asarray(images).reshape(-1, SIDE, SIDE, 3).astype(np.float32)
    for axis in (1, 2, 1, 2, 1, 2):
        pixels = (np.roll(pixels, 1, axis) + pixels + np.roll(pixels, -1, axis)) / 3
    means, deviations = pixels.mean((1, 2, 3), keepdims=True), pixels.std((1, 2, 3), keepdims=True)
    result: np.ndarray[Any, Any] = (pixels - means) / deviations
    return result


def parquet(place: str, files: int) -> dsnb.Dataset:
    """Batches of 100 images of Parquet files."""
    paths = [f"{place}/{number}.parquet" for number in range(files)]
    return dsnb.ParquetDataset(paths, batch_size=100).map(lambda batch: prepared(batch["image"]))


def records(place: str, files: int) -> dsnb.Dataset:
    """The same of TFRecord files."""
    names = dsnb.Dataset.from_tensor_slices([f"{place}/{number}.tfrecord" for number in range(files)])
    found = names.interleave(dsnb.TFRecordDataset, num_parallel_calls=dsnb.AUTOTUNE)
    return found.map(lambda record: np.frombuffer(record, np.uint8)).batch(100).map(prepared)


def shards(place: str, files: int) -> dsnb.Dataset:
    """The same of tar shards."""
    names = dsnb.Dataset.from_tensor_slices([f"{place}/{number}.tar" for number in range(files)])
    found = names.interleave(dsnb.WebDataset, num_parallel_calls=dsnb.AUTOTUNE)
    return found.map(lambda sample: np.frombuffer(sample["raw"], np.uint8)).batch(100).map(prepared)


SOURCES: dict[str, Callable[[str, int], dsnb.Dataset]] = {
    "`ParquetDataset`": parquet,
    "`TFRecordDataset`, `interleave` with `AUTOTUNE`": records,
    "`WebDataset`, `interleave` with `AUTOTUNE`": shards,
}


def epoch_s(dataset: dsnb.Dataset, service: Any, expected: int) -> float:
    """Seconds from the first `next` to the end of an epoch."""
    distributed = dataset.apply(dsnb.distribute("distributed_epoch", service))
    began = time.perf_counter()
    rows = sum(len(batch) for batch in distributed)
    assert rows == expected, f"{rows:,} rows, not {expected:,}"
    return time.perf_counter() - began


class Epoch(NamedTuple):
    """How long an epoch took, and how much processor time: of the workers and this process, and of the server."""

    seconds: float
    processor_s: float
    server_s: float


def measured(dataset: dsnb.Dataset, service: Any, expected: int, server: int) -> Epoch:
    """Read an epoch."""
    ours, its = processor_times(server)
    seconds = epoch_s(dataset, service, expected)
    ours_after, its_after = processor_times(server)
    return Epoch(seconds, ours_after - ours, its_after - its)


def processor_times(server: int) -> tuple[float, float]:
    """The processor seconds, so far, of this process and those that it started, and of the server."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            if os.getpid() in (int(path.parent.name), int(fields[1])):
                found[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    its = found.pop(server)
    return sum(found.values()), its


def remote_rows(turns: int) -> list[list[str]]:
    """Rows a second of local files and of the store, for each source and length of an epoch."""
    rows = []
    with tempfile.TemporaryDirectory() as name, dsnb.start(workers=2, isolation="process") as service:
        write_images(Path(name))
        with store(Path(name)) as (url, server):
            for title, make in SOURCES.items():
                for times in EPOCHS:
                    files = times * FILES
                    total = files * GROUPS * ROWS
                    pairs = [
                        [measured(make(place, files), service, total, server) for place in (name, url)]
                        for _ in range(turns + 1)
                    ]
                    rows.append([title, f"{total:,}", *_compared(total, pairs[1:])])  # the first imports and connects
                    print(rows[-1], flush=True)
    return rows


def _compared(total: int, pairs: Sequence[Sequence[Epoch]]) -> list[str]:
    local, remote = (Epoch(*map(statistics.median, zip(*one, strict=True))) for one in zip(*pairs, strict=True))
    ratio = statistics.median(one.seconds / other.seconds for one, other in pairs)
    return [
        f"{total / local.seconds:,.0f}",
        f"{total / remote.seconds:,.0f}",
        f"{ratio:.2f}",
        f"{local.processor_s:.2f}",
        f"{remote.processor_s:.2f}",
        f"{remote.server_s:.2f}",
    ]


# ---- balance


def slow_once(folder: str, seconds: float) -> Callable[[Any], int]:
    """A function that waits for each row group; three times as long in the first process that calls it."""
    mine: list[float] = []

    def wait(batch: Any) -> int:
        if not mine:
            try:
                os.close(os.open(os.path.join(folder, "slow"), os.O_CREAT | os.O_EXCL))
                mine.append(3 * seconds)
            except FileExistsError:
                mine.append(seconds)
        time.sleep(mine[0])
        return len(batch["x"])

    return wait


def balance_rows(turns: int) -> list[list[str]]:
    """How long an epoch takes in terms of the ideal time, with one slow worker among eight."""
    seconds = 0.1
    rows = []
    for files, groups in ((8, 64), (1, 64)):
        with tempfile.TemporaryDirectory() as name, dsnb.start(workers=8, isolation="process") as service:
            for number in range(files):
                write_parquet(Path(name) / f"{number}.parquet", {"x": list(range(groups * 10))}, 10)
            took = []
            for turn in range(turns + 1):
                mark = Path(name) / f"turn-{turn}"
                mark.mkdir()
                ds = (
                    dsnb.ParquetDataset(name)
                    .map(slow_once(str(mark), seconds))
                    .apply(dsnb.distribute("distributed_epoch", service))
                )
                with iter(ds) as elements:
                    elements.start()
                    began = time.perf_counter()
                    assert sum(map(int, elements)) == files * groups * 10
                    took.append(time.perf_counter() - began)
            ideal = files * groups * seconds / (7 + 1 / 3)
            ratio = statistics.median(took[1:]) / ideal
            rows.append([f"{files} x {groups} row groups", f"{ideal:.2f}", f"{ratio:.2f}"])
            print(rows[-1], flush=True)
    return rows


# ---- readers


def reader_rows(turns: int) -> list[list[str]]:
    """Rows a second of 17 columns, in batches of 4096."""
    hugging_face, ray = package_version("datasets", "datasets"), package_version("ray", "ray")
    count, size = 800_000, 4096
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, dsnb.start(workers=2, isolation="process") as service:
        files = []
        for number in range(4):
            columns: dict[str, Any] = {f"c{at:02}": rng.integers(0, 1000, count // 4) for at in range(9)}
            columns |= {f"c{at:02}": rng.random(count // 4) for at in range(9, 17)}
            files.append(write_parquet(Path(name) / f"{number}.parquet", columns, 25_000))
        ds = dsnb.ParquetDataset(files, batch_size=size)

        def rate(rows: Any) -> float:
            began = time.perf_counter()
            assert sum(len(batch["c00"]) for batch in rows) == count
            return count / (time.perf_counter() - began)

        for turn in range(turns + 1):
            figures = {
                "pyarrow, row group by row group, no batches": rate(_row_groups(files)),
                "`ParquetDataset`, in this process": rate(ds),
                "`ParquetDataset`, two worker processes": rate(ds.apply(dsnb.distribute("distributed_epoch", service))),
                "`ParquetDataset`, two worker processes, `rebatch(4096)`": rate(
                    ds.apply(dsnb.distribute("distributed_epoch", service)).rebatch(size)
                ),
                f"Hugging Face datasets {hugging_face}, streaming, `iter(4096)`": _peer(
                    "datasets", STREAMING, size, files
                ),
                f"Ray Data {ray}, two processors, `iter_batches(4096)`": _peer("ray", RAY, size, files),
            }
            for title, figure in figures.items():
                if turn:
                    found.setdefault(title, []).append(figure)
    rows = [[title, f"{statistics.median(figures) / 1e6:.2f}"] for title, figures in found.items()]
    print(*rows, sep="\n", flush=True)
    return rows


def _row_groups(files: list[str]) -> Iterator[dict[str, Any]]:
    for file in files:
        opened = pq.ParquetFile(file)
        for group in range(opened.num_row_groups):
            found = opened.read_row_group(group, use_threads=False)
            yield {name: column.to_numpy() for name, column in zip(found.column_names, found.columns, strict=True)}


def _peer(environment: str, code: str, size: int, files: list[str]) -> float:
    words = [str(python_of(environment)), "-c", code, str(size), *files]
    variables = {**os.environ, "HF_DATASETS_OFFLINE": "1", "RAY_DISABLE_IMPORT_WARNING": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=variables)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RATE")]
    return float(lines[-1].split()[1])  # of the second pass: the first one imports


PARTS: dict[str, tuple[Callable[[int], list[list[str]]], list[str]]] = {
    "store": (
        remote_rows,
        [
            "rows a second, two worker processes",
            "rows of an epoch",
            "local files",
            "store, 30 ms a request",
            "ratio",
            "processor s, local",
            "processor s, store",
            "the server's own",
        ],
    ),
    "balance": (balance_rows, ["eight workers, one of them three times slower", "ideal epoch, s", "epoch / ideal"]),
    "readers": (reader_rows, ["Parquet, 17 columns of numbers", "million rows a second"]),
}
"""What measures each part, and the columns of its table."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="epochs of each kind, after one that is not counted")
    parser.add_argument("--only", choices=PARTS, help="measure only this part")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md")
    arguments = parser.parse_args()
    if arguments.only and arguments.write:
        parser.error("--write needs all parts")
    load = os.getloadavg()[0]
    text = f"{machine()}; medians of {arguments.turns} epochs; the load average at the start was {load:.0f}."
    for name, (measure, columns) in PARTS.items():
        if arguments.only in (None, name):
            text += "\n\n" + table(columns, measure(arguments.turns))
    print(text)
    if arguments.write:
        write_section("performance.md", "object_store", text)


if __name__ == "__main__":
    main()

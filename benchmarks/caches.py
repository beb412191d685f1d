"""Reading a recording, next to what else keeps elements on a disk; and what three runs at once cost.

Every contender reads the same samples through its NumPy interface and copies each into one preallocated place, in a
process of its own: `first` is the first pass of a process (dsnb compares each frame with its checksum then), `later`
the median of the passes after it. Contenders take turns. A first round that does not count makes the files and leaves
them in the page cache. TensorFlow and HuggingFace `datasets` take part where they are installed.

    python benchmarks/caches.py [--runs 5] [--mb 500] [--json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import dsnb

WORKLOADS: dict[str, tuple[tuple[int, ...], str]] = {
    "28x28 float32": ((28, 28), "float32"),
    "4.8 MB uint8 batches": ((32, 224, 224, 3), "uint8"),
}
GOALS = {
    ("28x28 float32", "tf.data cache"): ("later", 20.0),
    ("28x28 float32", "datasets, by row"): ("later", 20.0),
    ("28x28 float32", "datasets, iter(1000)"): ("later", 1.0),
    ("28x28 float32", "np.load(mmap)"): ("later", 0.6),
    ("4.8 MB uint8 batches", "tf.data cache"): ("later", 2.0),
    ("4.8 MB uint8 batches", "datasets, by row"): ("later", 2.0),
    ("4.8 MB uint8 batches", "np.load(mmap)"): ("later", 0.8),
}
"""How many times as fast as each other one dsnb is meant to be."""
_PASSES = 4
_COPIES = 3


def count_of(workload: str, megabytes: int) -> int:
    """Elements of a workload that weigh about so much."""
    shape, dtype = WORKLOADS[workload]
    return max(4, megabytes * 1_000_000 // (int(np.prod(shape)) * np.dtype(dtype).itemsize))


def sample(workload: str, number: int) -> np.ndarray[Any, Any]:
    """One element; each is another one."""
    shape, dtype = WORKLOADS[workload]
    return np.full(shape, number % 251, dtype)


# ------------------------------------------------------------------------------------------------------- the contenders


def read_dsnb(folder: str, workload: str, count: int) -> Iterable[Any]:
    """`Dataset.cache` in a directory."""
    return dsnb.Dataset.range(count).map(lambda x: sample(workload, int(x))).cache(folder)


def read_numpy(folder: str, workload: str, count: int) -> Iterable[Any]:
    """One array, mapped, as a plain array."""
    path = Path(folder, "all.npy")
    if not path.exists():
        shape, dtype = WORKLOADS[workload]
        whole = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), (count, *shape))
        for number in range(count):
            whole[number] = sample(workload, number)
        whole.flush()
    array: np.ndarray[Any, Any] = np.asarray(np.load(path, mmap_mode="r"))
    return array


def read_tensorflow(folder: str, workload: str, count: int) -> Iterable[Any]:
    """tf.data's cache file."""
    tf: Any = importlib.import_module("tensorflow")
    shape, dtype = WORKLOADS[workload]
    spec = tf.TensorSpec(shape, dtype)
    made = tf.data.Dataset.from_generator(lambda: (sample(workload, n) for n in range(count)), output_signature=spec)
    cached: Iterable[Any] = made.cache(os.path.join(folder, "cache")).as_numpy_iterator()
    return cached


def read_datasets(folder: str, workload: str, count: int) -> Any:
    """HuggingFace datasets in their NumPy format."""
    datasets: Any = importlib.import_module("datasets")
    path = Path(folder, "set")
    shape, dtype = WORKLOADS[workload]
    if not path.exists():
        array = datasets.Array2D if len(shape) == 2 else datasets.Array4D
        features = datasets.Features({"x": array(shape, dtype)})
        rows = ({"x": sample(workload, number)} for number in range(count))
        datasets.Dataset.from_generator(lambda: rows, features=features, cache_dir=folder).save_to_disk(str(path))
    return datasets.load_from_disk(str(path)).with_format("numpy")


def by_row(folder: str, workload: str, count: int) -> Iterable[Any]:
    """One row at a time."""
    return (row["x"] for row in read_datasets(folder, workload, count))


def by_thousand(folder: str, workload: str, count: int) -> Iterable[Any]:
    """A thousand rows at a time, then one by one."""
    return (row for rows in read_datasets(folder, workload, count).iter(1000) for row in rows["x"])


Reader = Callable[[str, str, int], Iterable[Any]]
CONTENDERS: dict[str, tuple[str, Reader]] = {
    "dsnb": ("dsnb", read_dsnb),
    "np.load(mmap)": ("numpy", read_numpy),
    "tf.data cache": ("tensorflow", read_tensorflow),
    "datasets, by row": ("datasets", by_row),
    "datasets, iter(1000)": ("datasets", by_thousand),
}


def passes(contender: str, folder: str, workload: str, count: int) -> dict[str, float]:
    """Read several times in this process; elements a second of the first pass, and of the later ones."""
    read = CONTENDERS[contender][1]
    shape, dtype = WORKLOADS[workload]
    place = np.empty(shape, dtype)
    rates = []
    source = read(folder, workload, count)
    for number in range(_PASSES):
        # A dataset and an array are read again; what can be read once only is made anew.
        elements = source if iter(source) is not source else read(folder, workload, count) if number else source
        began = time.perf_counter()
        seen = 0
        for element in elements:
            np.copyto(place, element)
            seen += 1
        rates.append(seen / (time.perf_counter() - began))
        if seen != count:
            raise RuntimeError(f"{contender} gave {seen} elements instead of {count}")
    return {"first": rates[0], "later": statistics.median(rates[1:])}


# -------------------------------------------------------------------------------------------------- three runs at once


def busy(x: int) -> np.ndarray[Any, Any]:
    """Half a millisecond of work."""
    until = time.thread_time() + 0.0005
    while time.thread_time() < until:
        pass
    return np.full(100, x)


def share(folder: str, count: int) -> dict[str, float]:
    """Read a dataset that somebody may be recording; the CPU time of this process."""
    dataset = dsnb.Dataset.range(count).map(busy).cache(folder)
    before = time.process_time()
    seen = sum(1 for _ in dataset)
    return {"cpu_s": time.process_time() - before, "seen": seen}


def sharing(folder: str, copies: int, count: int) -> float:
    """Seconds of CPU that several runs, started at once, take together."""
    runs = [start("share", os.path.join(folder, f"shared-{copies}"), str(count)) for _ in range(copies)]
    return sum(finished(run)["cpu_s"] for run in runs)


# ------------------------------------------------------------------------------------------------------------- running


def start(*words: str) -> subprocess.Popen[str]:
    """This script in another process."""
    return subprocess.Popen([sys.executable, __file__, "--child", *words], stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, float]:
    """What it found."""
    out, _ = process.communicate(timeout=3600)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} failed")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def child(words: list[str]) -> dict[str, float]:
    """What the child does."""
    if words[0] == "share":
        return share(words[1], int(words[2]))
    return passes(words[0], words[1], words[2], int(words[3]))


def measure(folder: str, workload: str, runs: int, megabytes: int) -> dict[str, dict[str, float]]:
    """Medians of all contenders in elements a second."""
    there = [name for name, (module, _) in CONTENDERS.items() if importlib.util.find_spec(module) is not None]
    count = count_of(workload, megabytes)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in there}
    for run in range(runs + 1):  # the first one makes the files
        for name in there:
            place = Path(folder, f"{list(WORKLOADS).index(workload)}-{CONTENDERS[name][0]}")
            place.mkdir(exist_ok=True)
            result = finished(start(name, str(place), workload, str(count)))
            if run:
                found[name].append(result)
    return {
        name: {kind: statistics.median(result[kind] for result in results) for kind in ("first", "later")}
        for name, results in found.items()
    }


def report(rows: dict[str, Any]) -> None:
    """Print what came out, and how it stands to what is meant to be."""
    for workload in WORKLOADS:
        size = int(np.prod(WORKLOADS[workload][0])) * np.dtype(WORKLOADS[workload][1]).itemsize
        for name, row in rows[workload].items():
            rates = "   ".join(f"{kind} {row[kind]:10,.0f}/s {row[kind] * size / 1e9:6.2f} GB/s" for kind in row)
            kind, wanted = GOALS.get((workload, name), ("later", 0.0))
            ratio = rows[workload]["dsnb"][kind] / row[kind]
            goal = f"   dsnb is {ratio:.2f} times as fast; at least {wanted:g} is meant" if wanted else ""
            print(f"{workload:22} {name:22} {rates}{goal}")
    three = rows["three runs at once"]
    print(f"{'three runs at once':45} {three:.3f} of the CPU time of one; at most 1.1 is meant")


def main() -> None:
    """Run all and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes of each contender that count (default: 5)")
    parser.add_argument("--mb", type=int, default=500, help="megabytes of each workload (default: 500)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child)))
        return
    # Mappings of large files need descriptors of their own.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="dsnb-bench-") as folder:
        rows: dict[str, Any] = {name: measure(folder, name, options.runs, options.mb) for name in WORKLOADS}
        one = sharing(folder, 1, 4000)
        rows["three runs at once"] = sharing(folder, _COPIES, 4000) / one
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, medians of {options.runs} processes")
    report(rows)


if __name__ == "__main__":
    main()

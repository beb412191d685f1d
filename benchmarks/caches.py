"""Reading a recording, next to what else keeps elements on a disk; what three runs at once cost; the training cache.

Every contender reads the same samples through its NumPy interface and copies each into one preallocated place, in a
process of its own, with its library in a virtual environment of its own (`benchmarks/environments`): `first` is the
first pass of a process, `later` the median of the passes after it. A pass ends after `--seconds` where a contender is
slow. Contenders take turns. Before the rounds that count, all files are dropped from the page cache and read back in
large pieces, so that nobody's lie there in another way.

    python -m benchmarks.caches [--runs 5] [--mb 500] [--seconds 3] [--only NAME ...] [--json] [--write]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environments import ROOT, EnvironmentMissingError, python_of
from benchmarks.estimates import estimate
from benchmarks.sections import machine, table, write_section

WORKLOADS: dict[str, tuple[tuple[int, ...], str]] = {
    "28x28 float32": ((28, 28), "float32"),
    "4.8 MB uint8 batches": ((32, 224, 224, 3), "uint8"),
}
SMALL, LARGE = WORKLOADS
_PASSES = 4
_COPIES = 3
_ELEMENTS = 8000
_INSERTS = 300
_READ_BYTES = 8 << 20


def sample(workload: str, number: int) -> np.ndarray[Any, Any]:
    """One element; each is another one."""
    shape, dtype = WORKLOADS[workload]
    return np.full(shape, number % 251, dtype)


def count_of(workload: str, megabytes: int) -> int:
    """Elements of a workload that weigh about so much."""
    return max(4, megabytes * 1_000_000 // sample(workload, 0).nbytes)


# ------------------------------------------------------------------------------------------------------- the contenders


def read_dsnb(folder: str, workload: str, count: int) -> Iterable[Any]:
    """`Dataset.cache` in a directory."""
    import dsnb

    return dsnb.Dataset.range(count).map(lambda x: sample(workload, int(x))).cache(folder)


def read_numpy(folder: str, workload: str, count: int) -> Iterable[Any]:
    """One array, mapped, as a plain array."""
    path = Path(folder, "all.npy")
    if not path.exists():
        shape, dtype = WORKLOADS[workload]
        array_file = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), (count, *shape))
        for number in range(count):
            array_file[number] = sample(workload, number)
        array_file.flush()
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

        def rows() -> Iterable[dict[str, Any]]:
            return ({"x": sample(workload, number)} for number in range(count))

        datasets.Dataset.from_generator(rows, features=features, cache_dir=folder).save_to_disk(str(path))
    # Without a dtype it makes 64 bits of each whole number.
    return datasets.load_from_disk(str(path)).with_format("numpy", dtype=np.dtype(dtype))


def read_by_row(folder: str, workload: str, count: int) -> Iterable[Any]:
    """One row at a time."""
    return (row["x"] for row in read_datasets(folder, workload, count))


def read_by_thousand(folder: str, workload: str, count: int) -> Iterable[Any]:
    """A thousand rows at a time, then one by one."""
    return (row for rows in read_datasets(folder, workload, count).iter(1000) for row in rows["x"])


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Who reads.

    Args:
        read: Gives the elements of a workload; makes the files where they are not there.
        environment: Where its library is.
        files: The name of the folder of its files.
        goals: How many times as fast dsnb is meant to be, by workload and pass; it takes part in these workloads.
    """

    read: Callable[[str, str, int], Iterable[Any]]
    environment: str
    files: str
    goals: dict[str, dict[str, float]]


CONTENDERS = {
    "dsnb": Contender(read=read_dsnb, environment="dsnb", files="dsnb", goals={SMALL: {}, LARGE: {}}),
    "np.load(mmap)": Contender(
        read=read_numpy,
        environment="dsnb",
        files="numpy",
        # dsnb makes one copy more, and verifies a checksum; `dsnb/cache/recordings/segments.py` says why.
        goals={SMALL: {"later": 0.9}, LARGE: {"first": 0.4, "later": 0.9}},
    ),
    "tf.data cache": Contender(
        read=read_tensorflow,
        environment="tensorflow",
        files="tensorflow",
        goals={SMALL: {"later": 20.0}, LARGE: {"later": 2.0}},
    ),
    "datasets, row by row": Contender(
        read=read_by_row,
        environment="datasets",
        files="datasets",
        goals={SMALL: {"later": 20.0}, LARGE: {"later": 2.0}},
    ),
    "datasets, iter(1000)": Contender(
        read=read_by_thousand, environment="datasets", files="datasets", goals={SMALL: {"later": 1.0}}
    ),
}


def passes(name: str, folder: str, workload: str, count: int, seconds: float) -> dict[str, float]:
    """Read several times in this process; elements a second, and by the processor's second, of first and later passes.

    With no seconds the files are made by one whole pass.
    """
    read = CONTENDERS[name].read
    buffer = np.empty_like(sample(workload, 0))
    rates: dict[str, list[float]] = {"wall": [], "cpu": []}
    source = read(folder, workload, count)
    for number in range(_PASSES if seconds else 1):
        # A dataset and an array are read again; what can be read once only is made anew.
        elements = source if iter(source) is not source else read(folder, workload, count) if number else source
        wall, cpu = time.perf_counter(), time.process_time()
        seen = _copy_elements(elements, buffer, wall + seconds if seconds else None)
        rates["wall"].append(seen / (time.perf_counter() - wall))
        rates["cpu"].append(seen / (time.process_time() - cpu))
        if not seconds and seen != count:
            raise RuntimeError(f"{name} gave {seen} elements instead of {count}")
    return {
        f"{kind} {clock}": rate
        for clock, found in rates.items()
        for kind, rate in (("first", found[0]), ("later", statistics.median(found[1:] or found)))
    }


def _copy_elements(elements: Iterable[Any], buffer: np.ndarray[Any, Any], until: float | None) -> int:
    """Copy each element; how many there were. The clock is asked now and then."""
    seen = 0
    several = iter(elements)
    step = max(1, (1 << 20) // buffer.nbytes)
    while True:
        before = seen
        for element in islice(several, step):
            np.copyto(buffer, element)
            seen += 1
        if seen == before or (until is not None and time.perf_counter() > until):
            return seen


# -------------------------------------------------------------------------------------------------- three runs at once


def busy(x: int) -> np.ndarray[Any, Any]:
    """Half a millisecond of work."""
    until = time.thread_time() + 0.0005
    while time.thread_time() < until:
        pass
    return np.full(100, x)


def read_shared(folder: str, count: int) -> dict[str, float]:
    """Read a dataset that somebody may be recording; the CPU time of this process."""
    import dsnb

    dataset = dsnb.Dataset.range(count).map(busy).cache(folder)
    before = time.process_time()
    seen = sum(1 for _ in dataset)
    return {"cpu_s": time.process_time() - before, "seen": seen}


def cost_of_sharing(folder: str, runs: int) -> float:
    """What several runs, started at once, take together, as a part of what one takes; the median of some tries."""
    found = []
    for number in range(runs):
        cpu = {}
        for copies in (1, _COPIES):
            directory = os.path.join(folder, f"shared-{copies}-{number}")
            started = [start("dsnb", "share", directory, str(_ELEMENTS)) for _ in range(copies)]
            cpu[copies] = sum(result_of(process)["cpu_s"] for process in started)
        found.append(cpu[_COPIES] / cpu[1])
    return statistics.median(found)


# ------------------------------------------------------------------------------------------------------------- running


def start(environment: str, *words: str) -> subprocess.Popen[str]:
    """This module in another process, among the libraries of an environment."""
    command = [str(python_of(environment)), "-m", "benchmarks.caches", "--child", *words]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "HF_DATASETS_OFFLINE": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def result_of(process: subprocess.Popen[str]) -> dict[str, float]:
    """What it found."""
    out, _ = process.communicate(timeout=3600)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} failed")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def run_child(words: list[str]) -> dict[str, float]:
    """What the child does."""
    match words:
        case ["share", folder, count]:
            return read_shared(folder, int(count))
        case ["training", inserts]:
            from benchmarks import training_cache

            return training_cache.measure(int(inserts))
        case [name, folder, workload, count, seconds]:
            return passes(name, folder, workload, int(count), float(seconds))
    raise SystemExit(f"nothing to do for {words}")


def measure(folder: str, workload: str, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The measurements of all contenders in elements a second."""
    contenders = [
        name for name, one in CONTENDERS.items() if workload in one.goals and name in options.only and _is_built(name)
    ]
    count = count_of(workload, options.mb)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    directories = {
        name: Path(folder, f"{list(WORKLOADS).index(workload)}-{CONTENDERS[name].files}") for name in contenders
    }
    for run in range(options.runs + 1):  # the first one makes the files
        for name in contenders:
            directories[name].mkdir(exist_ok=True)
            words = [name, str(directories[name]), workload, str(count), str(options.seconds if run else 0)]
            result = result_of(start(CONTENDERS[name].environment, *words))
            if run:
                found[name].append(result)
        if not run:
            reload_page_cache(folder)
    return found


def _is_built(name: str) -> bool:
    """Whether a contender's environment is there; one that cannot be built is left out, with the reason."""
    try:
        return bool(python_of(CONTENDERS[name].environment))
    except EnvironmentMissingError as error:
        print(f"without {name}: {error}", file=sys.stderr)
        return False


def reload_page_cache(folder: str) -> None:
    """Let all files lie in the page cache in the same way, whoever wrote them."""
    os.sync()
    for path in (path for path in Path(folder).rglob("*") if path.is_file()):
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(_READ_BYTES):
                pass


# ----------------------------------------------------------------------------------------------------------- reporting


def report(rows: dict[str, Any]) -> str:
    """What came out, and how it stands to what is meant to be, as Markdown."""
    lines = []
    for workload in WORKLOADS:
        for name, row in rows[workload].items():
            lines.append(_line(workload, name, row, rows[workload].get("dsnb", row)))
    columns = ("what reads", "first pass, a second", "later, a second", "GB/s", "dsnb / this", "meant")
    training = rows["training"]
    hit = training["a hit of the decorator on a small result, ms"]
    return f"""{table(columns, lines)}

* Three runs at once take {rows["three runs at once"]:.2f} of the CPU time of one; at most 1.1 is meant.
* An insert into the training cache at 10,000 entries takes {training["ratio"]:.2f} of the time of one at 10; at most
  1.5 is meant.
* A hit of `remembered` on a small result takes {hit:.2f} ms; under 2 is meant.
"""


def _line(workload: str, name: str, rows: list[dict[str, float]], ours: list[dict[str, float]]) -> tuple[str, ...]:
    goals = CONTENDERS[name].goals[workload]
    first, later = (statistics.median(row[f"{kind} wall"] for row in rows) for kind in ("first", "later"))
    return (
        f"{workload}: {name}",
        f"{first:,.0f}",
        f"{later:,.0f}",
        f"{later * sample(workload, 0).nbytes / 1e9:.2f}",
        "; ".join(f"{_ratio(ours, rows, f'{kind} wall')} ({kind})" for kind in goals),
        "; ".join(f"{wanted:g}" for wanted in goals.values()),
    )


def _ratio(ours: list[dict[str, float]], rows: list[dict[str, float]], metric: str) -> str:
    """How many times as fast dsnb is, with its interval, by measurements that were made one after the other."""
    found = estimate([mine[metric] / other[metric] for mine, other in zip(ours, rows, strict=True)])
    return f"{found.value:.2f}, {found.low:.2f} to {found.high:.2f}"


def cpu_ratios(rows: dict[str, Any]) -> str:
    """The same ratios by CPU time, which other load on the machine changes less."""
    lines = [
        f"{workload:22} {name:22} {kind:6} {_ratio(rows[workload]['dsnb'], samples, f'{kind} cpu')}"
        for workload in WORKLOADS
        for name, samples in rows[workload].items()
        for kind in CONTENDERS[name].goals[workload]
        if "dsnb" in rows[workload]
    ]
    return "\n".join(["dsnb is so many times as fast, by CPU time:", *lines])


def main() -> None:
    """Run all and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="processes of each contender that count (default: 5)")
    parser.add_argument("--mb", type=int, default=500, help="megabytes of each workload (default: 500)")
    parser.add_argument("--seconds", type=float, default=3.0, help="most seconds of a pass (default: 3)")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="these contenders only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write the table into docs/recordings.md")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(options.child)))
        return
    # Mappings of large files need descriptors of their own.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="dsnb-bench-") as folder:
        rows: dict[str, Any] = {name: measure(folder, name, options) for name in WORKLOADS}
        rows["three runs at once"] = cost_of_sharing(folder, options.runs)
        rows["training"] = result_of(start("dsnb", "training", str(_INSERTS)))
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    text = f"{machine()}; medians of {options.runs} processes, ratios with their 95 % intervals.\n\n{report(rows)}"
    print(f"{text}\n\n{cpu_ratios(rows)}")
    if options.write:
        write_section("recordings.md", "caches", text)


if __name__ == "__main__":
    main()

"""How fast elements of a service come: dispatcher and worker in processes of their own, the reader in this one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import dsnb
from benchmarks.ours.pipelines import dataset
from benchmarks.peers import data
from benchmarks.peers.serving import Figures, Measure, Task, rate, serve
from benchmarks.servers import service


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    with service(tls=bool(task.options.get("tls"))) as target:
        read = dsnb.distribute(
            "parallel_epochs", target, data_transfer_protocol=task.transfer, compression=task.compression
        )
        if task.kind == "epoch":
            short = dsnb.Dataset.range(10).apply(read)
            yield lambda: epoch(short, int(task.options["epochs"]))
            return
        elements = dataset(task).apply(read)
        stream = elements.to_torch() if task.options.get("to_torch") else elements
        yield lambda: rate(lambda: iter(stream), data.element_bytes(task), task.seconds)


def epoch(short: dsnb.Dataset, epochs: int) -> Figures:
    """Milliseconds of a pass over ten elements."""
    began = time.perf_counter()
    for _ in range(epochs):
        for _ in short:
            pass
    return {"epoch_ms": 1000 * (time.perf_counter() - began) / epochs}


if __name__ == "__main__":
    serve(prepare)

"""TensorSocket: a producer around a DataLoader in a process of its own, a consumer in this one."""

from __future__ import annotations

import contextlib
import importlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.peers import data
from benchmarks.peers.serving import Measure, Task, rate, serve

WORKERS = 2
_BATCHES = 5_000


def run_producer(task: Task, ports: list[int]) -> None:
    """Offer batches, epoch after epoch."""
    torch = importlib.import_module("torch")
    utils = importlib.import_module("torch.utils.data")
    rows = torch.from_numpy(data.bank(task)).flatten(0, 1)

    class Rows(utils.Dataset):  # type: ignore[misc,name-defined] # from an environment that is not here
        def __len__(self) -> int:
            return _BATCHES * task.shape[0]

        def __getitem__(self, index: int) -> tuple[Any]:
            return (rows[index % len(rows)],)

    loader = utils.DataLoader(Rows(), batch_size=task.shape[0], num_workers=WORKERS)
    producer = importlib.import_module("tensorsocket").TensorProducer(loader, *ports[:2], tuple(ports[2:]))
    print("ready", flush=True)
    while True:
        for _ in producer:
            pass


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    """Start the producer, connect the consumer; it stays connected between measurements."""
    ports = free_ports(4)
    words = [sys.executable, "-m", "benchmarks.peers.tensorsocket", sys.argv[1], *map(str, ports)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            made = importlib.import_module("tensorsocket").TensorConsumer
            consumer = made(*ports[:2], tuple(ports[2:]), batch_size=task.shape[0])

            def elements() -> Iterator[Any]:
                while True:
                    yield from consumer

            yield lambda: rate(elements, data.element_bytes(task), task.seconds)
        finally:
            process.kill()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run_producer(Task.load(sys.argv[1]), [int(port) for port in sys.argv[2:]])
    else:
        serve(prepare)

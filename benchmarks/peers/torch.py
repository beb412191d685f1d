"""PyTorch's DataLoader with two worker processes; elements come one by one where they do elsewhere."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from itertools import count
from typing import Any

from benchmarks.peers import data
from benchmarks.peers.images import READERS
from benchmarks.peers.serving import Measure, Task, rate, serve

WORKERS = 2


def elements(task: Task) -> Any:
    """An iterable dataset that shares the work among its workers, as its documentation says."""
    torch = importlib.import_module("torch")
    utils = importlib.import_module("torch.utils.data")
    held: Any = None
    if task.data == "images":
        held, read = data.photos(task), READERS[task.options["decoder"]]
    elif task.data != "scalars":
        held = {"samples": data.samples, "tokens": data.sequences}.get(task.data, lambda: data.bank(task))()

    def one(number: int) -> Any:
        if task.data == "scalars":
            return number * number
        if task.data == "images":
            return torch.from_numpy(read(held[number % len(held)]))
        row = torch.from_numpy(held[number % len(held)])
        return row * 2 + 1 if task.data == "samples" else row

    class Elements(utils.IterableDataset):  # type: ignore[misc,name-defined] # from an environment that is not here
        def __iter__(self) -> Iterator[Any]:
            worker = utils.get_worker_info()
            return map(one, count(worker.id, worker.num_workers))

    return Elements()


def padded(sequences: list[Any]) -> Any:
    return importlib.import_module("torch.nn.utils.rnn").pad_sequence(sequences, batch_first=True)


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    """Make the loader; each measurement starts its workers anew, before it begins to count."""
    loader = importlib.import_module("torch.utils.data").DataLoader
    if task.data == "tokens":
        made = loader(elements(task), batch_size=data.PADDED, collate_fn=padded, num_workers=WORKERS)
    elif task.data == "images":
        made = loader(elements(task), batch_size=data.IMAGES, num_workers=WORKERS)
    else:
        made = loader(elements(task), batch_size=None, num_workers=WORKERS)
    yield lambda: rate(lambda: iter(made), data.element_bytes(task), task.seconds)


if __name__ == "__main__":
    serve(prepare)

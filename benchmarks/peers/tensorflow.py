"""The tf.data service: dispatcher and worker in a process of their own, the reader in this one."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from benchmarks.peers import data
from benchmarks.peers.serving import Figures, Measure, Task, rate, serve

FIRST_CELL = """
import time
began = time.perf_counter()
import tensorflow as tf
service = tf.data.experimental.service
dispatcher = service.DispatchServer()
address = dispatcher.target.partition("://")[2]
workers = [service.WorkerServer(service.WorkerConfig(dispatcher_address=address)) for _ in range(2)]
squares = tf.data.Dataset.range(10).map(lambda x: x * x)
squares = squares.apply(service.distribute("parallel_epochs", dispatcher.target))
next(iter(squares)).numpy()
print(time.perf_counter() - began)
import os
os._exit(0)
"""


def tensorflow() -> Any:
    return importlib.import_module("tensorflow")


def dataset(task: Task) -> Any:
    """What the service runs."""
    tf = tensorflow()
    auto = tf.data.AUTOTUNE
    if task.data == "scalars":
        return tf.data.Dataset.range(1 << 40).map(lambda x: x * x)
    if task.data == "samples":
        return tf.data.Dataset.from_tensor_slices(data.samples()).repeat().map(lambda x: x * 2 + 1)
    if task.data == "tokens":
        rows = tf.RaggedTensor.from_row_lengths(*_flat(data.sequences()))
        read = tf.data.Dataset.range(data.SEQUENCES).repeat().map(lambda i: rows[i], num_parallel_calls=auto)
        return read.padded_batch(data.PADDED, padded_shapes=[None]).prefetch(auto)
    if task.data == "images":
        files = tf.data.Dataset.from_tensor_slices(data.photos(task)).repeat()
        return files.map(_image, num_parallel_calls=auto).batch(data.IMAGES).prefetch(auto)
    return tf.data.Dataset.from_tensor_slices(data.bank(task)).repeat()


def _flat(sequences: list[data.Array]) -> tuple[Any, Any]:
    np = importlib.import_module("numpy")
    return np.concatenate(sequences), [len(x) for x in sequences]


def _image(path: Any) -> Any:
    """Decode (libjpeg-turbo), crop at random, resize, mirror at random."""
    tf = tensorflow()
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    image = tf.image.random_crop(image, (320, 320, 3))
    image = tf.image.resize(image, (data.SIDE, data.SIDE))
    return tf.cast(tf.image.random_flip_left_right(image), tf.uint8)


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Dispatcher and worker in another process."""
    words = [sys.executable, "-m", "benchmarks.peers.tensorflow", "server"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def run_server() -> None:
    """Serve until standard input ends."""
    service = tensorflow().data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print(dispatcher.target, flush=True)
    sys.stdin.read()
    del worker
    os._exit(0)


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    """Make the service and the reader."""
    if task.kind == "start":
        yield start
        return
    tf = tensorflow()
    distribute = tf.data.experimental.service.distribute
    with server() as target:
        if task.kind == "epoch":
            short = tf.data.Dataset.range(10).apply(distribute("parallel_epochs", target, compression=None))
            yield lambda: epoch(short, int(task.options["epochs"]))
            return
        read = dataset(task).apply(distribute("parallel_epochs", target, compression=task.compression))
        yield lambda: rate(lambda: iter(read), data.element_bytes(task), task.seconds)


def epoch(short: Any, epochs: int) -> Figures:
    """Seconds of a pass over ten elements."""
    began = time.perf_counter()
    for _ in range(epochs):
        for _ in short:
            pass
    return {"epoch_ms": 1000 * (time.perf_counter() - began) / epochs}


def start() -> Figures:
    """From import to the first element, in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", FIRST_CELL], stdout=subprocess.PIPE, text=True, check=True, timeout=90)
    return {"start_s": float(done.stdout.splitlines()[-1])}


if __name__ == "__main__":
    if sys.argv[1] == "server":
        run_server()
    else:
        serve(prepare)

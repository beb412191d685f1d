"""What transfers are held against: a copy into warm shared memory, and whole messages over bare gRPC."""

from __future__ import annotations

import contextlib
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import grpc
import numpy as np

from benchmarks.peers import data
from benchmarks.peers.serving import Figures, Measure, Task, rate, serve

RING_BYTES = 16 << 20
"""The ring that is copied into: half of a usual last-level cache."""
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


# ------------------------------------------------------------------------------------------------------------- memcpy


def copy_repeatedly(task: Task) -> Iterator[None]:
    """Copy batch after batch into a ring of shared memory, slab after slab."""
    batches = data.bank(task)
    size = data.batch_bytes(task)
    slabs = max(2, RING_BYTES // size)
    ring = np.frombuffer(shared_memory(slabs * size), task.dtype).reshape(slabs, *task.shape)
    for number in count():
        np.copyto(ring[number % slabs], batches[number % len(batches)])
        yield None


def shared_memory(nbytes: int) -> mmap.mmap:
    """Memory as the transfer has it: without a name, reserved."""
    fd = os.memfd_create("dsnb-bench")
    try:
        os.posix_fallocate(fd, 0, nbytes)
        return mmap.mmap(fd, nbytes)
    finally:
        os.close(fd)


def copy_latency(task: Task) -> Figures:
    """The median of microseconds for one copy, with the pauses of the measurement of latency."""
    copies, took = copy_repeatedly(task), []
    for _ in islice(copies, 20):
        pass
    for _ in range(200):
        time.sleep(float(task.options["pause_s"]))
        began = time.perf_counter_ns()
        next(copies)
        took.append(time.perf_counter_ns() - began)
    return {"us": statistics.median(took) / 1000}


# ----------------------------------------------------------------------------------------------------- whole messages


def run_server(task: Task) -> None:
    """Stream batches, each as one message, until standard input ends."""
    batches = data.bank(task)

    def stream(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        return (batches[number % len(batches)].tobytes() for number in count())

    handlers = {"Read": grpc.unary_stream_rpc_method_handler(stream)}
    server = grpc.server(ThreadPoolExecutor(2), options=_UNLIMITED)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("whole.Messages", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


@contextlib.contextmanager
def whole_messages(task: Task) -> Iterator[Measure]:
    """A bare gRPC stream of messages as large as the elements, and arrays that are views of them."""
    words = [sys.executable, "-m", "benchmarks.peers.limits", sys.argv[1], "server"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with grpc.insecure_channel(f"127.0.0.1:{process.stdout.readline().strip()}", options=_UNLIMITED) as channel:
            open_stream: Any = channel.unary_stream
            read = open_stream("/whole.Messages/Read")

            def elements() -> Iterator[data.Array]:
                call = read(b"")
                try:
                    for message in call:
                        yield np.frombuffer(message, task.dtype).reshape(task.shape)
                finally:
                    call.cancel()

            yield lambda: rate(elements, data.batch_bytes(task), task.seconds)
        process.terminate()


@contextlib.contextmanager
def prepare(task: Task) -> Iterator[Measure]:
    if task.kind == "whole":
        with whole_messages(task) as measure:
            yield measure
    elif task.kind == "copy":
        yield lambda: copy_latency(task)
    else:
        yield lambda: rate(lambda: copy_repeatedly(task), data.batch_bytes(task), task.seconds)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run_server(Task.load(sys.argv[1]))
    else:
        serve(prepare)

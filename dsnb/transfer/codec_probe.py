"""Measures codecs on a sample of a frame: how well and how fast they compress it, for `compression_policy`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any, Final

from dsnb.elements.columns import bytes_of
from dsnb.elements.compression import Codec, load_codec
from dsnb.transfer.compression_policy import Sample

_SAMPLE_PARTS: Final = 4
_SAMPLE_PART_BYTES: Final = 16 << 10  # with smaller parts the overhead of the call would dominate


def probe(names: Sequence[str], buffers: Sequence[Any], total: int) -> list[Sample]:
    """Measure each codec on four parts spread over a frame; takes some tens of microseconds."""
    data = sample_bytes(buffers, total)
    return [_measure(load_codec(name), data) for name in names]


def sample_bytes(buffers: Sequence[Any], total: int) -> bytes:
    """Four parts of a frame's body, spread evenly, at most 64 KB in all."""
    starts = [part * max(0, total - _SAMPLE_PART_BYTES) // (_SAMPLE_PARTS - 1) for part in range(_SAMPLE_PARTS)]
    taken: list[bytes] = []
    at = 0
    for buffer in buffers:
        view = bytes_of(buffer)
        while starts and starts[0] < at + len(view):
            begin = starts.pop(0) - at
            taken.append(bytes(view[begin : begin + _SAMPLE_PART_BYTES]))
        at += len(view)
    return b"".join(taken)


def _measure(one: Codec, data: bytes) -> Sample:
    packed, compress_ns = _time(lambda: one.compress(data))
    _, decompress_ns = _time(lambda: one.decompress(packed, len(data)))
    return Sample(
        codec=one.name,
        ratio=len(data) / max(1, len(packed)),
        compress_rate=len(data) * 1e9 / compress_ns,
        decompress_rate=len(data) * 1e9 / decompress_ns,
    )


def _time(work: Callable[[], bytes]) -> tuple[bytes, int]:
    """Run `work` three times; return its result and the best time in ns, as the first runs pay for cold or new memory.

    Measures the thread's CPU time: a codec releases the GIL, and waiting to get it back must not count.
    """
    times = []
    result = b""
    for _ in range(3):
        result = b""  # freed first, so that the next run reuses its memory
        began = thread_time_ns()
        result = work()
        times.append(thread_time_ns() - began)
    return result, max(1, min(times))

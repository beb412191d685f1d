"""Whether a reader's frames are compressed, and how: what `compression="AUTO"` decides. A pure core, but for `probe`.

Theory of operation. What a codec does for these data is measured on a sample of a frame: its ratio r, and the rates c
and d at which it compresses and decompresses. What the link does is measured by the stream: bytes that left, over the
time that it took to be rid of them (L). Sending as it is moves L; compressed, two machines side by side move
min(c, L*r, d), and one host that does both on the same cores 1/(1/c + 1/(L*r) + 1/d). A codec is taken when that is at
least `_GAIN` times L, and given up when going without is so much better: noise does not swing it.

Until enough has left to know the link, frames go as they are; then the next ones are looked at, and one in `_EVERY`
afterwards: data and links change. Small frames always do: there the message costs more than its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any, Final

from dsnb.dataclass import dataclass
from dsnb.elements.columns import bytes_of
from dsnb.elements.compression import AUTO, CODECS, NONE, Codec, load_codec

MIN_BYTES: Final = 4096
"""Bytes of a frame below which compressing it gains nothing."""
_MIN_GAIN: Final = 1.2
_INITIAL_SAMPLES: Final = 3
_SAMPLE_EVERY: Final = 256
_SAMPLE_PARTS: Final = 4
_SAMPLE_PART_BYTES: Final = 16 << 10  # of less, it is the call that would be measured
_MIN_LINK_BYTES: Final = 2 << 20
_DECAY_BYTES: Final = 64 << 20
_MIN_BULK_BYTES: Final = 64 << 10
_LINK_UNKNOWN_TEXT: Final = "none yet: the link is not known before 2 MB went over it in frames of 64 KB and more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a codec did with a sample of a frame.

    Attributes:
        ratio: Bytes before, for each byte after.
        compress_rate: Bytes a second.
        decompress_rate: Bytes a second.
    """

    codec: str
    ratio: float
    compress_rate: float
    decompress_rate: float

    def rate(self, link: float, *, same_host: bool) -> float:
        """Bytes a second that arrive by this codec over a link that carries `link` bytes a second."""
        packed = link * self.ratio
        if same_host:
            return 1 / (1 / self.compress_rate + 1 / packed + 1 / self.decompress_rate)
        return min(self.compress_rate, packed, self.decompress_rate)


class CompressionPolicy:
    """What one reader's frames are compressed with, at present.

    Args:
        requested: "AUTO", "NONE" or a codec's name.
        codecs: The codecs that both sides have.
        same_host: Whether both sides share their processor.

    Attributes:
        codecs: The codecs to sample.
        codec: The codec; empty for none.
        why: The decision in words, for `status()`.
    """

    def __init__(self, requested: str, codecs: Sequence[str], *, same_host: bool) -> None:
        self._auto = requested == AUTO and bool(codecs)
        self.codecs = codecs
        self._same_host = same_host
        self._decisions = 0
        self._frames_since_decision = 0
        self._link_bytes = 0.0
        self._link_s = 0.0
        self.codec = requested if requested in CODECS else ""
        self.why = self._initial_reason(requested)

    def _initial_reason(self, requested: str) -> str:
        if requested == AUTO:
            return (
                _LINK_UNKNOWN_TEXT
                if self.codecs
                else f"none: {' and '.join(CODECS).lower()} are not installed on both sides"
            )
        return "none: as asked for" if requested == NONE else f"{requested}: as asked for"

    @property
    def link(self) -> float:
        """Bytes a second that the link carries; 0 as long as that is not known."""
        return self._link_bytes / self._link_s if self._link_bytes >= _MIN_LINK_BYTES and self._link_s > 0 else 0.0

    def record_sent(self, nbytes: int, seconds: float) -> None:
        """Learn that a message of so many bytes left within that time."""
        if not self._auto or nbytes < _MIN_BULK_BYTES:
            return
        if self._link_bytes > _DECAY_BYTES:
            self._link_bytes, self._link_s = self._link_bytes / 2, self._link_s / 2
        self._link_bytes += nbytes
        self._link_s += seconds

    def wants_sample(self, nbytes: int) -> bool:
        """Whether to look at the next frame, of so many bytes; to be asked once for each."""
        if not self._auto or nbytes < _MIN_BULK_BYTES:
            return False
        self._frames_since_decision += 1
        return self.link > 0 and (self._decisions < _INITIAL_SAMPLES or self._frames_since_decision >= _SAMPLE_EVERY)

    def decide(self, samples: Sequence[Sample]) -> None:
        """Decide by what the codecs did with a frame."""
        link = self.link
        if not link or not samples:
            return
        gains = {sample.codec: sample.rate(link, same_host=self._same_host) / link for sample in samples}
        best = max(samples, key=lambda sample: gains[sample.codec])
        gains[""] = 1.0
        winner = best.codec if gains[best.codec] > 1 else ""
        if gains[winner] >= _MIN_GAIN * gains.get(self.codec, 0.0):
            self.codec = winner
        self._decisions += 1
        self._frames_since_decision = 0
        self.why = (
            f"{self.codec or 'none'}: {best.codec} makes it {best.ratio:.3g} times smaller at "
            f"{best.compress_rate / 1e9:.2g} GB/s, the link carries {link / 1e9:.2g} GB/s: "
            f"{gains[best.codec]:.2g} times as fast as without"
        )


def probe(names: Sequence[str], buffers: Sequence[Any], total: int) -> list[Sample]:
    """What each codec does with four pieces spread over a frame; some tens of microseconds."""
    data = sample_bytes(buffers, total)
    return [_measure(load_codec(name), data) for name in names]


def sample_bytes(buffers: Sequence[Any], total: int) -> bytes:
    """Four pieces of a frame's body, 64 KB in all; all of it where it has no more."""
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
    """A result, and the best of three times: the first ones pay for memory that is cold, or new.

    Of this thread's own time: a codec lets go of the interpreter, and the wait for it is not the codec's.
    """
    times = []
    result = b""
    for _ in range(3):
        result = b""  # or the next one gets new memory
        began = thread_time_ns()
        result = work()
        times.append(thread_time_ns() - began)
    return result, max(1, min(times))

"""Decides whether and how a reader's frames are compressed with `compression="AUTO"`. A pure core.

Theory of operation. A codec is measured on a sample of a frame (`codec_probe`): its ratio r, and the rates c and d at
which it compresses and decompresses. The network link is measured by the stream: bytes sent over the time until gRPC
accepted them, the rate L. Without compression data arrive at the rate L. With compression the rate is min(c, L*r, d) if
client and worker run on two machines that work in parallel, and 1/(1/c + 1/(L*r) + 1/d) if one host does both on the
same cores. A codec is chosen if its rate is at least `_MIN_GAIN` times L, and dropped if going without is better by the
same factor, so that noise does not make the decision flip.

Until enough bytes were sent to know the link, frames are not compressed. Then the next few frames are sampled, and
afterwards one in `_SAMPLE_EVERY`, because data and links change. Small frames are never compressed: their messages cost
more than their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dsnb.elements.compression import AUTO, CODECS, NONE

MIN_BYTES: Final = 4096
"""Frames with fewer bytes than this are not compressed: it would gain nothing."""
_MIN_GAIN: Final = 1.2
_INITIAL_SAMPLES: Final = 3
_SAMPLE_EVERY: Final = 256
_MIN_LINK_BYTES: Final = 2 << 20
_DECAY_BYTES: Final = 64 << 20
_MIN_BULK_BYTES: Final = 64 << 10
_LINK_UNKNOWN_TEXT: Final = "none yet: the network speed is not known until 2 MB were sent in frames of 64 KB or more"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one codec on a sample of a frame.

    Attributes:
        codec: The codec's name.
        ratio: Bytes before compression divided by bytes after.
        compress_rate: Uncompressed bytes per second.
        decompress_rate: Uncompressed bytes per second.
    """

    codec: str
    ratio: float
    compress_rate: float
    decompress_rate: float

    def rate(self, link: float, *, same_host: bool) -> float:
        """Uncompressed bytes per second that arrive with this codec over a link of `link` bytes per second."""
        packed = link * self.ratio
        if same_host:
            return 1 / (1 / self.compress_rate + 1 / packed + 1 / self.decompress_rate)
        return min(self.compress_rate, packed, self.decompress_rate)


class CompressionPolicy:
    """The present decision how to compress one reader's frames.

    Args:
        requested: "AUTO", "NONE" or a codec's name.
        codecs: The codecs that are installed at client and worker.
        same_host: Whether client and worker share processor cores.

    Attributes:
        codecs: The codecs to sample.
        codec: The name of the present codec; empty for none.
        why: The decision and its reason as text, for `status()`.
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
        """Bytes per second that the link carries; 0 until it is known."""
        return self._link_bytes / self._link_s if self._link_bytes >= _MIN_LINK_BYTES and self._link_s > 0 else 0.0

    def record_sent(self, nbytes: int, seconds: float) -> None:
        """Record that gRPC accepted a message of `nbytes` within `seconds`."""
        if not self._auto or nbytes < _MIN_BULK_BYTES:
            return
        if self._link_bytes > _DECAY_BYTES:
            self._link_bytes, self._link_s = self._link_bytes / 2, self._link_s / 2
        self._link_bytes += nbytes
        self._link_s += seconds

    def wants_sample(self, nbytes: int) -> bool:
        """Whether to sample the next frame, which has `nbytes`; must be called exactly once for each frame."""
        if not self._auto or nbytes < _MIN_BULK_BYTES:
            return False
        self._frames_since_decision += 1
        return self.link > 0 and (self._decisions < _INITIAL_SAMPLES or self._frames_since_decision >= _SAMPLE_EVERY)

    def decide(self, samples: Sequence[Sample]) -> None:
        """Choose the codec from measurements on one frame, one `Sample` for each codec."""
        link = self.link
        if not link or not samples:
            return
        gains = {sample.codec: sample.rate(link, same_host=self._same_host) / link for sample in samples}
        best = max(samples, key=lambda sample: gains[sample.codec])
        gains[""] = 1.0
        winner = best.codec if gains[best.codec] > 1 else ""
        # Hysteresis: the winner must be better than the present codec, not only than no codec.
        if gains[winner] >= _MIN_GAIN * gains.get(self.codec, 0.0):
            self.codec = winner
        self._decisions += 1
        self._frames_since_decision = 0
        self.why = (
            f"{self.codec or 'none'}: {best.codec} makes it {best.ratio:.3g} times smaller at "
            f"{best.compress_rate / 1e9:.2g} GB/s, the link carries {link / 1e9:.2g} GB/s: "
            f"{gains[best.codec]:.2g} times as fast as without"
        )

"""The codecs that can compress frames for transfer. `transfer/compression_policy` decides which one is used, and when.

Measured on 1 MB blocks in one thread, as GB/s to compress / decompress (compression ratio):

    data            lz4               zstandard
    noise           17 / 22 (1.0)     8 / 26 (1.0)
    smooth images   14 / 21 (160)     3 / 4 (46)
    token ids       0.9 / 3.4 (2.7)   0.5 / 1.3 (7.0)

So on fast networks lz4 is the better choice, if any, and zstandard pays on slow ones. Both release the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from dsnb.errors import FailedPreconditionError

NONE: Final = "NONE"
AUTO: Final = "AUTO"
_PACKAGES: Final = {"LZ4": "lz4", "ZSTD": "zstandard"}
CODECS: Final = tuple(_PACKAGES)
"""The names of all codecs, installed or not; the fastest first."""
_ZSTD_LEVEL: Final = 1


class Codec(msgspec.Struct, frozen=True, kw_only=True):
    """A compression algorithm.

    Attributes:
        name: "LZ4" or "ZSTD".
        compress: Compresses bytes, or any contiguous buffer.
        decompress: Decompresses; its second argument is the number of bytes before compression.
    """

    name: str
    compress: Callable[[Any], bytes]
    decompress: Callable[[Any, int], bytes]


@lru_cache(maxsize=1)
def installed_codecs() -> tuple[str, ...]:
    """The names of the codecs installed in this process, the fastest first. Does not import them."""
    return tuple(name for name, package in _PACKAGES.items() if find_spec(package) is not None)


def missing_codec_error(name: str, where: str) -> FailedPreconditionError:
    """The error for a codec whose package is not installed `where`."""
    return FailedPreconditionError(
        f"the codec {name} is not installed {where}",
        did="nothing was read",
        hint='pip install "dsnb[compression]" there, or leave `compression` out: then what is installed is used',
    )


@lru_cache(maxsize=len(_PACKAGES))
def load_codec(name: str) -> Codec:
    """Import the package of a codec, and return the codec.

    Raises:
        FailedPreconditionError: its package is not installed.

    Example:
        >>> lz4 = load_codec("LZ4")
        >>> packed = lz4.compress(bytes(1000))
        >>> len(packed) < 50, lz4.decompress(packed, 1000) == bytes(1000)
        (True, True)
    """
    if name not in installed_codecs():
        raise missing_codec_error(name, "here")
    return _lz4() if name == "LZ4" else _zstd()


def _lz4() -> Codec:
    block: Any = import_module("lz4.block")  # Any: the package does not declare which names are public

    def compress(data: Any) -> bytes:
        packed: bytes = block.compress(data, store_size=False)
        return packed

    def decompress(data: Any, nbytes: int) -> bytes:
        whole: bytes = block.decompress(data, uncompressed_size=nbytes)
        return whole

    return Codec(name="LZ4", compress=compress, decompress=decompress)


def _zstd() -> Codec:
    import zstandard

    mine = threading.local()  # compressors are not thread-safe, and expensive to create: keep one for each thread

    def compress(data: Any) -> bytes:
        if not hasattr(mine, "compressor"):
            mine.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        packed: bytes = mine.compressor.compress(data)
        return packed

    def decompress(data: Any, nbytes: int) -> bytes:
        if not hasattr(mine, "decompressor"):
            mine.decompressor = zstandard.ZstdDecompressor()
        whole: bytes = mine.decompressor.decompress(data, max_output_size=nbytes)
        return whole

    return Codec(name="ZSTD", compress=compress, decompress=decompress)

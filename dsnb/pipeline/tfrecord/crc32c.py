"""CRC-32C (Castagnoli), the checksum of TFRecord files.

If google-crc32c is installed, it uses the processor's own instruction, at several GB/s. Otherwise NumPy does it, at a
hundredth of that speed. A CRC is linear, so the checksum of a block is the exclusive or of one table entry for each of
its bytes. Blocks are joined by shifting the CRC so far past the next block and adding that block's own CRC.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

_POLYNOMIAL: Final = 0x82F63B78
_ALL_ONES: Final = 0xFFFFFFFF
_BLOCK: Final = 512
_MAX_LOOP_BYTES: Final = 48
"""Up to this many bytes, a loop is faster than NumPy."""
_MASK_DELTA: Final = 0xA282EAD8

Array = np.ndarray[Any, Any]


def native_crc32c() -> Callable[[bytes], int] | None:
    """The function of `google_crc32c`; None if it is absent or has no native code."""
    try:
        import google_crc32c
    except ImportError:
        return None
    # Its implementation without the instruction is a loop in Python.
    return google_crc32c.value if google_crc32c.implementation == "c" else None


def crc32c_numpy(data: bytes) -> int:
    """Compute the checksum with NumPy.

    Example:
        >>> hex(crc32c_numpy(b"123456789"))
        '0xe3069283'
    """
    if len(data) <= _MAX_LOOP_BYTES:
        return _ALL_ONES ^ _update_bytewise(_ALL_ONES, data)
    # Leading zeros do not change a CRC that starts at zero. The initial value of all ones equals inverting the first
    # four bytes.
    head = bytes(byte ^ 0xFF for byte in data[:4])
    blocks = np.frombuffer(bytes(-len(data) % _BLOCK) + head + data[4:], np.uint8).reshape(-1, _BLOCK)
    tables = _block_tables()
    crc = 0
    # In portions: the gathered table entries take four times the memory of the data.
    for first in range(0, len(blocks), _BLOCK):
        portion = blocks[first : first + _BLOCK]
        sums: Array = np.bitwise_xor.reduce(tables[np.arange(_BLOCK), portion], axis=1)
        for own in sums.tolist():
            crc = own ^ _shift_block(crc)
    return _ALL_ONES ^ crc


def _update_bytewise(crc: int, data: bytes) -> int:
    table = _byte_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def _shift_block(crc: int) -> int:
    """Return the CRC after a block of zeros."""
    first, second, third, fourth = _shift_tables()
    return first[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ fourth[crc >> 24]


@cache
def _byte_table() -> list[int]:
    """The CRC contribution of each byte value at the last position."""
    table: Array = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    entries: list[int] = table.tolist()
    return entries


@cache
def _block_tables() -> Array:
    """The CRC contribution of each byte value at each position of a block, first position first."""
    last: Array = np.array(_byte_table(), np.uint32)
    tables = np.empty((_BLOCK, 256), np.uint32)
    tables[-1] = last
    for index in range(_BLOCK - 2, -1, -1):
        after = tables[index + 1]
        tables[index] = last[after & 0xFF] ^ (after >> 8)
    return tables


@cache
def _shift_tables() -> list[list[int]]:
    tables: list[list[int]] = _block_tables()[:4].tolist()
    return tables


crc32c: Callable[[bytes], int] = native_crc32c() or crc32c_numpy
"""Computes the checksum of some bytes."""


def masked_crc32c(data: bytes) -> int:
    """Compute the checksum as TFRecord files store it: rotated and offset, since data may itself contain CRCs."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ALL_ONES

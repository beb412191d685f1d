"""Protobuf's varint encoding, for the two modules that write the protobuf format by hand."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Encode a non-negative integer, seven bits to a byte, the lowest bits first.

    Example:
        >>> varint(300).hex()
        'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

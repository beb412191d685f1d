"""Numbers as protobuf writes them, for the two places that write its format by hand."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """A number from 0 on, seven bits to a byte, the lowest first.

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

"""The checksum is the one of RFC 3720, counted in either way."""

from __future__ import annotations

import sys

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.pipeline.tfrecord.crc32c import crc32c, crc32c_numpy, masked_crc32c, native_crc32c

# From RFC 3720, B.4.
KNOWN = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize("data", KNOWN, ids=lambda data: repr(data)[:20])
def test_known_checksums(data: bytes) -> None:
    assert crc32c(data) == crc32c_numpy(data) == KNOWN[data]


@given(st.binary(max_size=2000))
def test_numpy_counts_as_the_library(data: bytes) -> None:
    assert crc32c_numpy(data) == google_crc32c.value(data)


@pytest.mark.parametrize("size", [48, 49, 511, 512, 513, 1024, 512 * 512 - 1, 512 * 512 + 1, 1_000_003])
def test_numpy_counts_as_the_library_at_the_edges_of_blocks(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert crc32c_numpy(data) == google_crc32c.value(data)


def test_numpy_counts_where_the_library_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_crc32c() is google_crc32c.value
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert native_crc32c() is None


def test_the_mask_turns_and_adds() -> None:
    assert masked_crc32c(b"") == 0xA282EAD8
    counted = crc32c(b"123456789")
    assert masked_crc32c(b"123456789") == ((counted >> 15 | counted << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32

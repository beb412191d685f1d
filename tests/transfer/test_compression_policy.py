"""Compression is taken where it was measured to pay, and what was decided can be told."""

from __future__ import annotations

import numpy as np
import pytest

from dsnb.transfer.codec_probe import probe, sample_bytes
from dsnb.transfer.compression_policy import CompressionPolicy, Sample

MB = 1 << 20
ONE_GBIT = 0.12e9
LOOPBACK = 2e9
NOISE = Sample(codec="LZ4", ratio=1.0, compress_rate=16e9, decompress_rate=20e9)
TOKENS = Sample(codec="LZ4", ratio=2.7, compress_rate=0.9e9, decompress_rate=3.4e9)
SMOOTH = Sample(codec="LZ4", ratio=30.0, compress_rate=12e9, decompress_rate=20e9)


def on(link: float, *, asked: str = "AUTO", same_host: bool = False) -> CompressionPolicy:
    choice = CompressionPolicy(asked, ("LZ4", "ZSTD"), same_host=same_host)
    measure(choice, link)
    return choice


def measure(choice: CompressionPolicy, link: float, megabytes: int = 4) -> None:
    for _ in range(megabytes):
        choice.record_sent(MB, MB / link)


@pytest.mark.parametrize(
    "sample, link, same_host, codec",
    [
        (NOISE, ONE_GBIT, False, ""),
        (NOISE, LOOPBACK, True, ""),
        (TOKENS, ONE_GBIT, False, "LZ4"),
        (TOKENS, LOOPBACK, True, ""),
        (SMOOTH, LOOPBACK, True, "LZ4"),
        (SMOOTH, ONE_GBIT, False, "LZ4"),
    ],
)
def test_a_codec_is_taken_where_it_is_faster(sample: Sample, link: float, same_host: bool, codec: str) -> None:
    choice = on(link, same_host=same_host)
    choice.decide([sample])
    assert choice.codec == codec
    assert choice.why.startswith(f"{codec or 'none'}: LZ4 makes it")


def test_of_several_codecs_the_fastest_over_this_link_is_taken() -> None:
    slow = Sample(codec="ZSTD", ratio=7.0, compress_rate=0.5e9, decompress_rate=1.3e9)
    choice = on(0.03e9)
    choice.decide([TOKENS, slow])
    assert choice.codec == "ZSTD"
    choice = on(1e9)
    choice.decide([SMOOTH, slow])
    assert choice.codec == "LZ4"


def test_it_changes_its_mind_when_the_data_do_and_not_for_a_little() -> None:
    choice = on(ONE_GBIT)
    choice.decide([TOKENS])
    assert choice.codec == "LZ4"
    choice.decide([Sample(codec="LZ4", ratio=1.1, compress_rate=1e9, decompress_rate=3e9)])
    assert choice.codec == "LZ4"
    choice.decide([Sample(codec="LZ4", ratio=0.8, compress_rate=1e9, decompress_rate=3e9)])
    assert choice.codec == ""
    choice.decide([Sample(codec="LZ4", ratio=1.1, compress_rate=1e9, decompress_rate=3e9)])
    assert choice.codec == ""


def test_it_changes_its_mind_when_the_link_does() -> None:
    choice = on(ONE_GBIT)
    choice.decide([TOKENS])
    measure(choice, 10e9, megabytes=1000)
    choice.decide([TOKENS])
    assert choice.codec == ""
    assert choice.link > 5e9


def test_nothing_is_compressed_before_the_link_is_known() -> None:
    choice = CompressionPolicy("AUTO", ("LZ4",), same_host=False)
    assert not choice.wants_sample(MB)
    choice.decide([SMOOTH])
    assert choice.codec == ""
    assert choice.why.startswith("none yet")
    measure(choice, ONE_GBIT)
    assert choice.wants_sample(MB)


def test_frames_are_looked_at_at_first_and_then_one_in_many() -> None:
    choice = on(ONE_GBIT)
    looked_at = 0
    for _ in range(2560):
        if choice.wants_sample(MB):
            looked_at += 1
            choice.decide([NOISE])
    assert 10 <= looked_at <= 14
    assert not any(choice.wants_sample(100) for _ in range(1000))


@pytest.mark.parametrize(
    "asked, usable, codec, why",
    [
        ("NONE", ("LZ4",), "", "none: as asked for"),
        ("LZ4", ("LZ4",), "LZ4", "LZ4: as asked for"),
        ("AUTO", (), "", "none: lz4 and zstd are not installed on both sides"),
    ],
)
def test_what_was_asked_for_is_not_measured(asked: str, usable: tuple[str, ...], codec: str, why: str) -> None:
    choice = CompressionPolicy(asked, usable, same_host=True)
    measure(choice, ONE_GBIT)
    assert not choice.wants_sample(MB)
    assert (choice.codec, choice.why) == (codec, why)


def test_a_sample_is_taken_from_all_over_the_frame() -> None:
    body = np.repeat(np.arange(4, dtype=np.uint8), 100_000)
    for buffers in ([body], [body[:150_000], body[150_000:]], np.split(body, 400)):
        sample = np.frombuffer(sample_bytes(buffers, len(body)), np.uint8)
        assert len(sample) <= 4 * (16 << 10)
        assert set(sample) == {0, 1, 2, 3}


def test_a_probe_tells_what_compresses_from_what_does_not() -> None:
    noise = np.random.default_rng(0).integers(0, 256, MB, np.uint8)
    (flat,) = probe(["LZ4"], [noise], MB)
    assert 0.95 < flat.ratio < 1.05
    for sample in probe(["LZ4", "ZSTD"], [np.zeros(MB, np.uint8)], MB):
        assert sample.ratio > 20
        assert min(sample.compress_rate, sample.decompress_rate) > 1e6

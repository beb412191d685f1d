"""Codecs give back what they got, and one that is missing is named."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dsnb.client.options import compression_rule
from dsnb.elements import compression
from dsnb.elements.compression import CODECS, installed_codecs, load_codec
from dsnb.errors import FailedPreconditionError, InvalidArgumentError


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "installed_codecs", lambda: ())
    load_codec.cache_clear()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("nbytes", [1, 100, 1 << 20])
def test_what_goes_in_comes_out(name: str, nbytes: int) -> None:
    for data in (bytes(nbytes), np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)):
        packed = load_codec(name).compress(data)
        assert load_codec(name).decompress(packed, nbytes) == bytes(data)


@pytest.mark.parametrize("name", CODECS)
def test_threads_do_not_mix(name: str) -> None:
    datas = [np.full(1 << 18, number, np.uint8) for number in range(4)]
    wrong: list[bool] = []

    def work(data: np.ndarray) -> None:
        one = load_codec(name)
        wrong.extend(one.decompress(one.compress(data), data.nbytes) != data.tobytes() for _ in range(20))

    threads = [threading.Thread(target=work, args=(data,)) for data in datas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [False] * 80


@pytest.mark.parametrize("name", CODECS)
def test_damage_is_an_error_of_some_kind(name: str) -> None:
    with pytest.raises(Exception, match=r"\w"):
        load_codec(name).decompress(b"\xff\x00 damaged", 1000)


@pytest.mark.usefixtures("nothing_installed")
def test_a_codec_that_is_named_and_missing_is_refused_where_it_was_named() -> None:
    with pytest.raises(FailedPreconditionError, match="LZ4 is not installed here") as caught:
        compression_rule("compression", "LZ4")
    assert "dsnb[compression]" in str(caught.value)
    assert compression_rule("compression", "AUTO") == "AUTO"
    assert compression_rule("compression", None) == "NONE"


def test_all_codecs_are_installed_with_everything_and_others_are_unknown() -> None:
    assert installed_codecs() == CODECS
    with pytest.raises(InvalidArgumentError, match="Invalid `compression` argument"):
        compression_rule("compression", "SNAPPY")

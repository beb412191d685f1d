from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.cache import LocalTrainingCache, remembered
from dsnb.cli import main
from dsnb.pipeline.dataset import Dataset
from tests.support.redis import RedisServer
from tests.support.requires import require_module
from tests.support.waiting import wait_for


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A directory with a complete recording and a partial one."""
    where = tmp_path / "cache"
    list(Dataset.range(10).map(lambda x: np.full(1000, x)).cache(where))
    list(Dataset.range(20).batch(3).cache(where).take(4))
    return where


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    assert main(["cache", *map(str, arguments)]) == code
    out = capsys.readouterr().out
    return json.loads(out) if "--json" in arguments else out


def test_ls_shows_each_recording_the_one_read_last_first(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "ls", cache).splitlines()
    assert lines[0].split() == ["key", "state", "elements", "size", "in", "use", "pipeline"]
    assert [line.split()[1:3] for line in lines[1:]] == [["partial", "4"], ["complete", "10"]]
    assert lines[1].endswith("range(20) | batch(3)")


def test_ls_json_has_everything(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partial, complete = told(capsys, "ls", cache, "--json")["recordings"]
    assert (partial["state"], partial["elements"]) == ("partial", 4)
    assert complete["nbytes"] > 80_000
    assert not complete["in_use"]


def test_what_is_being_read_is_shown_as_in_use_and_not_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with iter(Dataset.range(20).batch(3).cache(cache)) as elements:
        next(elements)
        found = told(capsys, "ls", cache, "--json")["recordings"]
        assert [entry["in_use"] for entry in found] == [True, False]
        told(capsys, "rm", cache, code=1)
        assert len(told(capsys, "ls", cache, "--json")["recordings"]) == 1
        assert len(list(elements)) == 6


def test_verify_finds_what_is_damaged(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "2 recordings: all as they were written" in told(capsys, "verify", cache)
    segment = max(cache.rglob("*.seg"), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[5000] ^= 1
    segment.write_bytes(data)
    assert segment.name in told(capsys, "verify", cache, code=1)
    found = told(capsys, "verify", cache, "--json", code=1)
    assert found["checked"] == 2
    assert len(found["damaged"]) == 1


def test_verify_finds_a_damaged_log(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (manifest,) = cache.rglob("manifest")
    manifest.write_bytes(manifest.read_bytes().replace(b"chunk", b"chunc"))
    assert len(told(capsys, "verify", cache, "--json", code=1)["damaged"]) == 1
    states = {entry["state"] for entry in told(capsys, "ls", cache, "--json")["recordings"]}
    assert states == {"damaged", "partial"}


def test_rm_removes_one_or_all(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = told(capsys, "ls", cache, "--json")["recordings"][1]["key"]
    assert told(capsys, "rm", cache, key[:8], "--json")["freed_bytes"] > 80_000
    assert [entry["state"] for entry in told(capsys, "ls", cache, "--json")["recordings"]] == ["partial"]
    assert "became free" in told(capsys, "rm", cache)
    assert told(capsys, "ls", cache) == f"nothing is recorded in {cache}\n"


def test_size_counts_all_bytes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    total = told(capsys, "size", cache, "--json")["bytes"]
    assert total == sum(entry["nbytes"] for entry in told(capsys, "ls", cache, "--json")["recordings"])
    assert "kB" in told(capsys, "size", cache)


@pytest.mark.parametrize("action", ["ls", "verify", "rm", "size"])
def test_a_directory_that_is_not_there_is_told(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", action, str(tmp_path / "none")]) == 1
    assert "there is no directory" in capsys.readouterr().err


def test_an_unknown_key_is_told(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "rm", str(cache), "xyz"]) == 1
    assert "begins with 'xyz'" in capsys.readouterr().err
    assert len(told(capsys, "ls", cache, "--json")["recordings"]) == 2


@pytest.fixture(params=["redis", "fsspec"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An address with a complete recording and a partial one."""
    require_module(request.param)
    with RedisServer(tmp_path) if request.param == "redis" else nullcontext() as server:
        where = server.url if server is not None else f"file://{tmp_path}/remote"
        list(Dataset.range(10).map(lambda x: np.full(1000, x)).cache(where))
        list(Dataset.range(20).batch(3).cache(where).take(4))
        yield where


def test_what_is_recorded_at_an_address_is_listed_compared_and_removed(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "ls", address, "--json")["recordings"]
    assert sorted((entry["state"], entry["elements"], entry["pipeline"]) for entry in found) == [
        ("complete", 10, "range(10) | map(<lambda>)"),
        ("partial", 4, "range(20) | batch(3)"),
    ]
    assert told(capsys, "size", address, "--json")["bytes"] > 80_000
    assert "2 recordings: all as they were written" in told(capsys, "verify", address)
    (partial,) = (entry["key"] for entry in found if entry["state"] == "partial")
    told(capsys, "rm", address, partial[:10])
    assert [entry["state"] for entry in told(capsys, "ls", address, "--json")["recordings"]] == ["complete"]
    assert told(capsys, "rm", address, "--json")["freed_bytes"] > 80_000
    assert told(capsys, "ls", address) == f"nothing is recorded in {address}\n"


def test_all_of_a_recording_goes_from_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("redis")
    with RedisServer(tmp_path) as server:
        list(Dataset.range(10).cache(server.url))
        with server.client() as client:
            client.set("mine", "not dsnb's")
            told(capsys, "rm", server.url)
            assert list(client.scan_iter("*")) == [b"mine"]


def test_what_is_damaged_at_an_address_is_found(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    if address.startswith("file://"):
        victim = max((Path(address.removeprefix("file://"))).rglob("data/*"), key=lambda path: path.stat().st_size)
        victim.write_bytes(bytes(victim.stat().st_size))
    else:
        import redis

        with redis.Redis.from_url(address) as client:
            key = max(client.scan_iter("dsnb:data:*"), key=client.strlen)
            client.set(key, bytes(client.strlen(key)))
            client.connection_pool.disconnect()
    found = told(capsys, "verify", address, "--json", code=1)
    assert (found["checked"], len(found["damaged"])) == (2, 1)


@pytest.mark.slow
def test_what_is_written_at_an_address_is_in_use_and_not_removed(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ds = Dataset.range(100_000).map(lambda x: x).cache(address, lease_seconds=6)
    with iter(ds) as elements:

        def written() -> bool:
            next(elements)
            return any(entry["in_use"] for entry in told(capsys, "ls", address, "--json")["recordings"])

        wait_for(written, what="a pulse", timeout=60)
        told(capsys, "rm", address, code=1)
        assert [entry["in_use"] for entry in told(capsys, "ls", address, "--json")["recordings"]] == [True]


def test_a_server_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    require_module("redis")
    assert main(["cache", "ls", "redis://:secret@127.0.0.1:1/0"]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1:1 cannot be reached" in error
    assert "secret" not in error


def step(rate: float) -> list[float]:
    return [rate] * 1000


@pytest.mark.slow
@pytest.mark.parametrize("size", ["", "0", "0.001"])
def test_a_training_cache_is_listed_compared_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    with LocalTrainingCache(tmp_path / "training") as cache:
        for rate in (1.0, 2.0, 3.0):
            remembered(cache=cache)(step)(rate)
    monkeypatch.setenv("DSNB_MAX_CACHE_SIZE", size)  # the command shows what is there, whatever may be written
    found = told(capsys, "ls", tmp_path / "training", "--json")["recordings"]
    assert [entry["state"] for entry in found].count("result") == 3
    assert "step" in told(capsys, "ls", tmp_path / "training")
    assert "all as they were written" in told(capsys, "verify", tmp_path / "training")
    (victim, *_) = (path for path in (tmp_path / "training").glob("result-*/**/*") if path.is_file())
    victim.write_bytes(b"damaged")
    assert len(told(capsys, "verify", tmp_path / "training", "--json", code=1)["damaged"]) == 1
    told(capsys, "rm", tmp_path / "training", found[-1]["key"])
    assert len(told(capsys, "ls", tmp_path / "training", "--json")["recordings"]) == len(found) - 1
    told(capsys, "rm", tmp_path / "training")
    assert told(capsys, "ls", tmp_path / "training", "--json")["recordings"] == []
    assert not list((tmp_path / "training").glob("result-*"))

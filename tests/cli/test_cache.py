from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.cli import main
from dsnb.pipeline.dataset import Dataset


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

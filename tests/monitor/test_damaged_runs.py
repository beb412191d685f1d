"""A damaged run file is an error that names it, or is read without what is damaged; never a raw error."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

import pytest

import dsnb
from dsnb.cli import main
from dsnb.errors import DataLossWarning, DsnbError
from dsnb.monitor.run_file import RunReader
from tests.support.requires import require_module
from tests.support.waiting import wait_for

SEED = 23


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a whole run file with some snapshots."""
    path = tmp_path_factory.mktemp("run") / "run.db"
    with dsnb.start(workers=1, name="whole") as service, service.record(path, every=0.1):
        list(dsnb.Dataset.range(9).apply(dsnb.distribute("parallel_epochs", service, job_name="train")))
        wait_for(lambda: len(times_of(path)) >= 6, what="six snapshots")
    return path.read_bytes()


def times_of(path: Path) -> list[float]:
    with RunReader(path) as reader:
        return reader.times()


def damaged(run: bytes, draw: random.Random) -> bytes:
    """The file with a piece overwritten, cut out or cut off."""
    at = draw.randrange(len(run)) if draw.random() < 0.7 else draw.randrange(200)
    kind = draw.choice(["flip", "zeros", "cut", "lose"])
    length = draw.choice([1, 8, 100, 5000])
    if kind == "flip":
        return run[:at] + bytes([run[at] ^ (1 << draw.randrange(8))]) + run[at + 1 :]
    if kind == "zeros":
        return run[:at] + bytes(min(length, len(run) - at)) + run[at + length :]
    return run[:at] if kind == "cut" else run[:at] + run[at + length :]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dsnb.errors.DataLossWarning")
def test_whatever_is_damaged_the_error_is_a_page_and_the_rest_is_read(tmp_path: Path, run: bytes) -> None:
    draw, path = random.Random(SEED), tmp_path / "run.db"
    found: list[DsnbError | None] = []
    for _ in range(400):
        path.write_bytes(damaged(run, draw))
        found.append(refusal_of(path))
    refused = [error for error in found if error is not None]
    assert [error for error in refused if str(path) not in error.what or not error.hint] == []
    assert min(len(refused), len(found) - len(refused)) > 20, f"seed {SEED}"


def refusal_of(path: Path) -> DsnbError | None:
    """Why a file cannot be read; None if it can."""
    try:
        with RunReader(path) as reader:
            list(reader.between(0.0, time.time()))
            for at in reader.times():
                reader.at(at)
    except DsnbError as error:
        return error
    return None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dsnb.errors.DataLossWarning")
def test_a_report_of_a_damaged_run_is_a_page_or_a_refusal(
    tmp_path: Path, run: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, path, page = random.Random(SEED), tmp_path / "run.db", tmp_path / "run.html"
    for _ in range(60):
        path.write_bytes(damaged(run, draw))
        code = main(["report", str(path), str(page)])
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        assert (code == 0 and page.exists()) or str(path) in told.err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "dashboard"])
def test_a_damaged_run_file_is_refused_by_each_command(
    tmp_path: Path, run: bytes, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    require_module("panel")
    path = tmp_path / "run.db"
    path.write_bytes(run[:4096] + bytes(len(run) - 4096))
    words = ["report", str(path), "run.html"] if command == "report" else ["dashboard", "--replay", str(path)]
    assert main(words) == 1
    told = capsys.readouterr().err
    assert str(path) in told
    assert "try:" in told


def test_snapshots_that_are_damaged_are_left_out_and_counted(tmp_path: Path, run: bytes) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(run)
    times = times_of(path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE snapshots SET data = x'0102' WHERE time = ?", (times[2],))
    database.close()
    with RunReader(path) as reader:
        with pytest.warns(DataLossWarning, match=r"1 snapshot of .*run\.db is damaged"):
            read = list(reader.between(0.0, time.time()))
        assert len(read) == len(times) - 1
        assert reader.at(times[2]) == reader.at(times[1])

"""Readers in processes of their own that are slow, forked or interrupted, and files that are cut under them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cache.beside import CHUNK
from tests.support.processes import PythonProcess
from tests.support.redis import RedisServer
from tests.support.requires import require_module

LENGTH = 120
FEW = 16
"""Elements of a size that could not be foreseen that a run may ask for at once."""

Start = Callable[..., PythonProcess]
PLACES = ["directory", "redis", "fsspec"]


@pytest.fixture
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place for recordings that processes can share; nothing for memory."""
    kind = getattr(request, "param", "directory")
    if kind == "redis":
        require_module("redis")
        with RedisServer(tmp_path) as server:
            yield server.url
    elif kind == "fsspec":
        require_module("fsspec")
        yield f"file://{tmp_path}/remote"
    else:
        yield "" if kind == "memory" else str(tmp_path / "cache")


@pytest.fixture
def start(tmp_path: Path, where: str) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(what: str, *numbers: int, length: int = LENGTH, stdin: bool = False) -> PythonProcess:
            words = [what, where, str(tmp_path / "calls"), str(length), *map(str, numbers)]
            return stack.enter_context(PythonProcess(["-m", "tests.cache.beside", *words], stdin=stdin))

        yield begin


def calls(tmp_path: Path) -> int:
    return os.path.getsize(tmp_path / "calls")


@pytest.mark.slow
@pytest.mark.parametrize("where", PLACES, indirect=True)
def test_a_slow_writer_holds_nobody_up(tmp_path: Path, start: Start) -> None:
    writer = start("slow", stdin=True)
    writer.wait_for_line("HOLDS")
    assert calls(tmp_path) < LENGTH / 2, "nothing is produced that nobody asked for"
    other = start("whole")
    assert other.wait_for_exit(timeout=40) == 0, other.describe()
    assert calls(tmp_path) == LENGTH
    assert writer.popen.stdin is not None
    writer.popen.stdin.write(b"\n")
    writer.popen.stdin.close()
    assert writer.wait_for_exit() == 0, writer.describe()
    assert calls(tmp_path) == LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", *PLACES], indirect=True)
def test_a_fork_of_a_writer_does_not_wait_for_its_lease(tmp_path: Path, start: Start, where: str) -> None:
    process = start("forking")
    assert process.wait_for_exit(timeout=40) == 0, process.describe()
    # A forked process has a memory of its own; elsewhere the two share one recording.
    assert calls(tmp_path) <= (LENGTH if where else 2 * LENGTH)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "directory"], indirect=True)
def test_forks_at_any_moment_hang_nowhere(start: Start) -> None:
    process = start("forks")
    assert process.wait_for_exit(timeout=100) == 0, process.describe()


@pytest.mark.slow
def test_a_file_that_is_cut_under_a_reader_costs_no_element_and_no_process(tmp_path: Path, start: Start) -> None:
    process = start("cut")
    assert process.wait_for_exit(timeout=60) == 0, process.describe()
    assert calls(tmp_path) <= 2 * LENGTH


@pytest.mark.slow
def test_a_folder_that_may_not_be_read_any_more_stops_no_pass(tmp_path: Path, start: Start) -> None:
    process = start("forbidden")
    assert process.wait_for_exit(timeout=60) == 0, process.describe()


@pytest.mark.slow
def test_a_death_costs_a_chunk_of_elements_of_any_sizes(tmp_path: Path, start: Start) -> None:
    length = 1200
    deaths = (1, 2, 3, 9, 30)
    for death in deaths:
        process = start("uneven", death, length=length)
        assert process.wait_for_exit(timeout=60) == -signal.SIGKILL, process.describe()
    assert start("uneven", 0, length=length).wait_for_exit(timeout=60) == 0
    # The first chunk holds all of the first quarter, which is small; the others hold few elements.
    assert calls(tmp_path) <= length + length // 4 + length // 4 // FEW + len(deaths) * (CHUNK + FEW)


def _interrupt(start: Start, tmp_path: Path, seed: int, times: int) -> None:
    sys.stdout.write(f"seed {seed}\n")
    process = start("interrupted", seed, times)
    assert process.wait_for_exit(timeout=30 + times) == 0, process.describe()
    hits = int(process.wait_for_line("HITS").split()[1])
    assert hits > times / 10
    # An interrupt may take a run of elements from its reader, but none from the recording.
    assert calls(tmp_path) == LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("where", ["memory", *PLACES], indirect=True)
def test_interrupts_at_any_moment_leave_the_recording_whole(tmp_path: Path, start: Start, seed: int) -> None:
    _interrupt(start, tmp_path, seed, 40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("where", ["memory", *PLACES], indirect=True)
def test_thousands_of_interrupts(tmp_path: Path, start: Start, seed: int) -> None:
    _interrupt(start, tmp_path, seed, 400)


@pytest.mark.slow
def test_ctrl_c_ends_a_pass_at_once_and_the_next_one_goes_on(tmp_path: Path, start: Start) -> None:
    process = start("slow", stdin=True)
    process.wait_for_line("HOLDS")
    process.popen.send_signal(signal.SIGINT)
    assert process.wait_for_exit() != 0
    assert start("whole").wait_for_exit() == 0
    assert calls(tmp_path) <= LENGTH + CHUNK

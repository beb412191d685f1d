"""What a worker reports about its host's memory and GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsnb.wire.messages import GpuStatus, HostUse
from dsnb.worker.host_meter import GpuReader, HostMeter
from tests.support.waiting import wait_for

MEMINFO = "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  600 kB\n"
DRIVER = """
class NVMLError(Exception): pass
class Of:
    def __init__(self, **fields): self.__dict__.update(fields)
def nvmlInit(): {init}
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return b"old" if handle else "new"
def nvmlDeviceGetMemoryInfo(handle): return Of(used=40, total=80)
def nvmlDeviceGetUtilizationRates(handle):
    if handle: raise NVMLError("not supported")
    return Of(gpu=87)
"""
Install = Callable[[str], None]


@pytest.fixture
def install_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a `pynvml` with the given `nvmlInit` where Python finds it."""

    def install(init: str) -> None:
        (tmp_path / "pynvml.py").write_text(DRIVER.format(init=init))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)

    yield install
    sys.modules.pop("pynvml", None)


def memory(folder: Path) -> tuple[int, int]:
    use = HostMeter(proc=str(folder), control_groups=str(folder)).read()
    return use.memory_used_bytes, use.memory_total_bytes


def test_the_memory_of_a_host_is_what_is_not_available(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert memory(tmp_path) == (400 * 1024, 1000 * 1024)


@pytest.mark.parametrize(
    "limit_file, use_file, droppable",
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_container_has_the_memory_of_its_limit(
    tmp_path: Path, limit_file: str, use_file: str, droppable: str
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / limit_file).write_text("5000\n")
    (tmp_path / use_file).write_text("3000\n")
    (tmp_path / use_file).with_name("memory.stat").write_text(f"anon 1\n{droppable} 1000\n")
    assert memory(tmp_path) == (2000, 5000)


@pytest.mark.parametrize("limit", ["max", str(1 << 62)])
def test_a_container_without_a_limit_has_the_memory_of_its_host(tmp_path: Path, limit: str) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "memory.max").write_text(limit)
    assert memory(tmp_path) == (400 * 1024, 1000 * 1024)


def test_this_host_has_memory_and_uses_some_of_it() -> None:
    use = HostMeter().read()
    assert 0 < use.memory_used_bytes < use.memory_total_bytes


def test_a_report_takes_what_was_read_half_a_second_ago(tmp_path: Path) -> None:
    meter = HostMeter(proc=str(tmp_path))
    assert meter.read() is meter.read()


def test_gpus_are_read_in_the_background(install_driver: Install, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    install_driver(f"open({str(gate)!r}).close()")  # which waits until somebody opens it to write
    reader = GpuReader()
    assert list(reader.read()) == []
    gate.open("w").close()
    wait_for(reader.read, what="the GPUs")
    assert reader.read() == (
        GpuStatus(name="new", busy_percent=87, memory_used_bytes=40, memory_total_bytes=80),
        GpuStatus(name="old", busy_percent=-1, memory_used_bytes=40, memory_total_bytes=80),
    )


def test_a_host_without_a_driver_is_asked_once(install_driver: Install, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    install_driver(f"import os; os.mkdir({str(asked)!r}); raise NVMLError('no driver')")
    reader = GpuReader()
    reader.read()
    wait_for(lambda: not reader.readable, what="the driver to fail")
    wait_for(lambda: "dsnb-gpus" not in {thread.name for thread in threading.enumerate()}, what="the thread to end")
    asked.rmdir()
    assert list(reader.read()) == []
    assert "dsnb-gpus" not in {thread.name for thread in threading.enumerate()}
    assert not asked.exists()


def test_without_the_library_nothing_is_imported_and_no_thread_starts() -> None:
    code = (
        "import importlib.util, threading; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'pynvml' else find(name, *more)\n"
        "import sys; from dsnb.worker.host_meter import HOST_METER; use = HOST_METER.read()\n"
        "print(len(use.gpus), 'pynvml' in sys.modules, threading.active_count())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["0", "False", "1"]


def test_a_host_without_figures_reports_none(tmp_path: Path) -> None:
    use = HostMeter(proc=str(tmp_path), control_groups=str(tmp_path)).read()
    assert use.memory_used_bytes == 0
    assert HostUse().memory_total_bytes == 0

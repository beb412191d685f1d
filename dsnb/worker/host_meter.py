"""How much of its host's memory and GPUs is in use, for the reports of workers.

Theory of operation. A process has one meter, whose last reading all of its workers report. A new one is taken at most
twice a second. GPUs are read by `nvidia-ml-py`, if it is installed, and by a thread of their own: a driver can take
seconds, for which no report may wait. Their figures therefore come with the next report.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsnb.wire.messages import GpuStatus, HostUse
from dsnb.worker.host import memory_bytes

_READ_EVERY_S = 0.5
_MAX_READING_SHARE = 0.02
"""Share of the time in which a thread may read GPUs: with a driver that takes 100 ms, they are read every 5 s."""
_MAX_GPUS = 16
_CONTAINERS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""For both versions of control groups: the files with the limit and the use, and the name of what can be dropped."""


class HostMeter:
    """Reads how much of this host is in use. Thread-safe.

    Args:
        gpus: Reads the GPUs.
        proc: The folder of `meminfo`.
        control_groups: The folder of control groups.
    """

    def __init__(
        self, gpus: GpuReader | None = None, proc: str = "/proc", control_groups: str = "/sys/fs/cgroup"
    ) -> None:
        self._gpus = gpus or GpuReader()
        self._proc, self._control_groups = Path(proc), Path(control_groups)
        self._lock = threading.Lock()
        self._due = 0.0
        self._last = HostUse()

    def read(self) -> HostUse:
        """The use of the last half second."""
        with self._lock:
            now = time.monotonic()
            if now >= self._due:
                self._due = now + _READ_EVERY_S
                used, total = self._memory()
                self._last = HostUse(memory_used_bytes=used, memory_total_bytes=total, gpus=tuple(self._gpus.read()))
            return self._last

    def _memory(self) -> tuple[int, int]:
        """Bytes of memory in use and in all: of this container, if its limit is lower than the host's memory."""
        host = _counters(self._proc / "meminfo")
        total = 1024 * host.get("MemTotal:", 0)
        for limit_file, use_file, droppable in _CONTAINERS:
            limit = _number_in(self._control_groups / limit_file)
            if 0 < limit < total:
                used = _number_in(self._control_groups / use_file)
                stat = _counters((self._control_groups / use_file).with_name("memory.stat"))
                return max(0, used - stat.get(droppable, 0)), limit
        if not total:  # not Linux
            return 0, memory_bytes()
        return total - 1024 * host.get("MemAvailable:", 0), total


class GpuReader:
    """Reads the NVIDIA GPUs of this host by `nvidia-ml-py`; without it, imports nothing and finds none.

    Attributes:
        readable: Whether there may be any: `nvidia-ml-py` is installed, and has not failed to find a driver.

    Example:
        >>> reader = GpuReader()
        >>> reader.read()  # starts to read
        >>> reader.read()  # soon afterwards: what was read
    """

    def __init__(self) -> None:
        self._library: Any = None
        self.readable = find_spec("pynvml") is not None
        self._lock = threading.Lock()
        self._due = 0.0
        self._last: Sequence[GpuStatus] = ()

    def read(self) -> Sequence[GpuStatus]:
        """What was read last; starts a new reading in a thread if it is time for one."""
        if self.readable and time.monotonic() >= self._due and self._lock.acquire(blocking=False):
            try:
                threading.Thread(target=self._read_and_release, name="dsnb-gpus", daemon=True).start()
            except RuntimeError:  # no more threads, or the interpreter ends: another reading may succeed
                self._lock.release()
        return self._last

    def _read_and_release(self) -> None:
        began = time.monotonic()
        try:
            self._last = self._read_all()
        except Exception:  # noqa: BLE001 - no driver, or one that fails: a figure to look at must end nothing
            self._last, self.readable = (), self._library is not None
        finally:
            now = time.monotonic()
            self._due = now + max(_READ_EVERY_S, (now - began) / _MAX_READING_SHARE)
            self._lock.release()

    def _read_all(self) -> Sequence[GpuStatus]:
        if self._library is None:
            library = importlib.import_module("pynvml")
            library.nvmlInit()
            self._library = library
        count = min(_MAX_GPUS, self._library.nvmlDeviceGetCount())
        return tuple(self._read_one(self._library.nvmlDeviceGetHandleByIndex(index)) for index in range(count))

    def _read_one(self, handle: Any) -> GpuStatus:
        name, memory = self._library.nvmlDeviceGetName(handle), self._library.nvmlDeviceGetMemoryInfo(handle)
        return GpuStatus(
            name=name.decode() if isinstance(name, bytes) else str(name),
            busy_percent=self._busy_percent(handle),
            memory_used_bytes=int(memory.used),
            memory_total_bytes=int(memory.total),
        )

    def _busy_percent(self, handle: Any) -> int:
        try:
            return int(self._library.nvmlDeviceGetUtilizationRates(handle).gpu)
        except self._library.NVMLError:  # a GPU that is divided (MIG) does not tell
            return -1


def _counters(path: Path) -> dict[str, int]:
    """The first number of each line by the word before it; empty if there is no such file."""
    try:
        lines = [line.split(maxsplit=2) for line in path.read_text(encoding="ascii").splitlines()]
        return {line[0]: int(line[1]) for line in lines if len(line) > 1}
    except (OSError, ValueError):
        return {}


def _number_in(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return 0


HOST_METER = HostMeter()
"""The meter of this process."""

"""What was measured, kept in a file so that one workload can be measured again without the others."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.peers.serving import Figures
from benchmarks.sections import commit


@dataclass(kw_only=True)
class WorkloadResult:
    """One workload.

    Args:
        date: The date.
        commit: Of the checkout.
        runs: How often each contender was measured.
        samples: What each of them found.
        missing: Why others found nothing.
    """

    date: str
    commit: str
    runs: int
    samples: dict[str, list[Figures]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


class ResultsFile:
    """A file of results."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.versions: dict[str, str] = {}
        self.workloads: dict[str, WorkloadResult] = {}
        if path.exists():
            saved = json.loads(path.read_text(encoding="utf-8"))
            self.versions = saved["versions"]
            self.workloads = {name: WorkloadResult(**one) for name, one in saved["workloads"].items()}

    def save(self, name: str, measured: WorkloadResult, versions: dict[str, str]) -> None:
        """Put a workload in the place of what was known of it, and the versions of the peers; in the file, too."""
        self.workloads[name], self.versions = measured, versions
        self.write()

    def write(self) -> None:
        """Write the file anew."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path = self._path.with_suffix(".new")
        temporary_path.write_text(self.text(), encoding="utf-8")
        temporary_path.replace(self._path)

    def text(self) -> str:
        """All of it as JSON."""
        workloads = {name: asdict(one) for name, one in self.workloads.items()}
        return json.dumps({"machine": machine(), "versions": self.versions, "workloads": workloads}, indent=1)


def new_result(runs: int) -> WorkloadResult:
    """A workload that is going to be measured now."""
    return WorkloadResult(date=time.strftime("%Y-%m-%d %H:%M"), commit=commit(), runs=runs)


def machine() -> str:
    """What it was measured on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    name = models[0] if models else platform.machine()
    return f"{os.cpu_count()} cores, {name}, {memory:.0f} GB, {platform.system()}, Python {platform.python_version()}"

"""Runs scenarios of an engine in a process of their own: engines leave threads and files in the process that uses them.

A module of scenarios has functions whose names begin with `scenario_`, their long forms with `soak_`, and a context
manager `engine` around them all.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.leaving import RUNS, WITH_AND_WITHOUT
from tests.support.processes import is_running
from tests.support.waiting import wait_for

PREFIX = "scenario_"
SOAK = "soak_"
PACE_S = 0.0005
"""How long an element takes while a worker of an engine leaves, which is slower than a worker of this host."""
_ROOT = Path(__file__).parents[2]


def names(module: ModuleType, prefix: str = PREFIX) -> list[str]:
    """The scenarios of a module, in its order."""
    return [name.removeprefix(prefix) for name in vars(module) if name.startswith(prefix)]


def run_all(module: str, timeout: float, prefix: str = PREFIX) -> dict[str, str]:
    """Run all scenarios of a module; returns the traceback of each, empty if it passed.

    Prints how long each one took. Fails if a process that one of them started outlives them by a minute.
    """
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="e-") as folder:  # Ray's sockets need a short path
        results, log = Path(folder, "results.json"), Path(folder, "log")
        with log.open("w") as output:
            ended = subprocess.run(
                [sys.executable, "-m", __name__, module, prefix, str(results)],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
                env={**os.environ, "DSNB_SCENARIOS": folder, "RAY_TMPDIR": folder},
            )
        sys.stdout.write(log.read_text())
        if not results.exists():
            pytest.fail(f"the scenarios ended with {ended.returncode}:\n{log.read_text()[-4000:]}")
        found: dict[str, str] = json.loads(results.read_text())
        marker = f"DSNB_SCENARIOS={folder}"
        wait_for(lambda: not processes_with(marker), what="the engine's processes to end", timeout=60.0)
    return found


def repeat_leaving(*ways: Callable[[str], None]) -> None:
    """Run each way to leave `RUNS` times, without and with operations on the workers that mix and join elements."""
    for way in ways:
        for pipeline in WITH_AND_WITHOUT:
            for run in range(1, RUNS + 1):
                began = time.monotonic()
                way(pipeline)
                sys.stderr.write(f"{way.__name__}, {pipeline}: run {run}, {time.monotonic() - began:.1f} s\n")


def processes_with(variable: str) -> list[str]:
    """The command lines of the running processes that have an environment variable, as in "NAME=value"."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                if is_running(int(folder.name)):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended, or belongs to another user
            continue
    return found


def main() -> None:
    (module_name, prefix, path), results = sys.argv[1:], {}
    module = importlib.import_module(module_name)
    with module.engine():
        for name in names(module, prefix):
            began = time.monotonic()
            try:
                getattr(module, prefix + name)()
                results[name] = ""
            except BaseException:  # noqa: BLE001 - the test of that scenario shows it
                results[name] = traceback.format_exc()
            end = "failed" if results[name] else "passed"
            sys.stderr.write(f"{name} {end} after {time.monotonic() - began:.1f} s\n")
    Path(path).write_text(json.dumps(results))


if __name__ == "__main__":
    main()

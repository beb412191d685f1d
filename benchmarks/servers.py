"""A dispatcher and a worker in processes of their own, as on another machine."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_READY_S = 60.0


@contextlib.contextmanager
def service(*worker_flags: str, tls: bool = False) -> Iterator[str]:
    """A dispatcher and a worker, by the command line, and their target. This process and its children know the token.

    Args:
        worker_flags: More arguments of `dsnb worker`.
        tls: Whether they listen beyond loopback, and so with TLS.
    """
    with tempfile.TemporaryDirectory(prefix="dsnb-bench-") as folder, contextlib.ExitStack() as stack:
        token = Path(folder, "token")
        os.environ["DSNB_RUNTIME_DIR"] = folder
        host = ("--host", "auto") if tls else ()
        dispatcher = stack.enter_context(command("dispatcher", "--token-file", str(token), "--json", *host))
        target = str(json.loads(first_line(dispatcher))["target"])
        os.environ["DSNB_TOKEN"] = token.read_text(encoding="utf-8").strip()
        address = target.removeprefix("grpc://")
        words = ("worker", "--dispatcher", address, "--token-file", str(token), *host, *worker_flags)
        first_line(stack.enter_context(command(*words)))
        yield target


@contextlib.contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A `dsnb` command in the background; it is ended and waited for."""
    process = subprocess.Popen([sys.executable, "-m", "dsnb", *words], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


def first_line(process: subprocess.Popen[str]) -> str:
    """What a command prints when it is ready."""
    if process.stdout is None or not select.select([process.stdout], [], [], _READY_S)[0]:
        raise RuntimeError(f"{process.args!r} was not ready within {_READY_S:g} seconds")
    return process.stdout.readline()


def pids_of(names: tuple[str, ...]) -> dict[str, int]:
    """The processes of `dsnb` commands that this one has started."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_text(encoding="utf-8").split("\0")
            if parent == os.getpid() and words[3] in names:
                found[words[3]] = int(entry.name)
    return found

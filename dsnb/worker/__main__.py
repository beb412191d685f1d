"""`python -m dsnb.worker`: runs a worker for the process that started this one; see `worker.process`.

The last arguments are `--owner` and the id of that process, or `--remote` if a command such as `srun` stands between
them; then only the end of standard input shows that the owner is gone. The worker reads one line of settings from
standard input (JSON; so the token is in no argument list) and prints one line of JSON: its address, or why it could not
start. Then it serves until standard input ends, it is idle after a line "drain", its parent is gone, or SIGTERM
arrives. On SIGTERM it first delivers what is ready, for a few seconds; a second SIGTERM ends that.
SIGINT is ignored: the stop button of a notebook sends it to the kernel's whole process group.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
from types import FrameType
from typing import Any, BinaryIO

from dsnb.imports import gc_paused

with gc_paused():
    from dsnb.code.imports import keep_received_modules
    from dsnb.errors import DsnbError
    from dsnb.worker.config import WorkerConfig
    from dsnb.worker.host import die_with_parent, keep_freed_memory, set_switch_interval
    from dsnb.worker.server import WorkerServer

_PARENT_POLL_S = 1.0
"""How often the worker checks its parent's id. The end of standard input is not enough: a forked child of the parent
may keep it open."""
_END_S = 10.0
_LEAVE_S = 5.0
"""How long the worker delivers what is ready after SIGTERM; what is left then goes to other workers."""


def main() -> int:
    """Run the worker until its owner ends or releases it; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _on_sigterm)
    parent = None if sys.argv[-1] == "--remote" else int(sys.argv[-1])
    if parent is not None:
        die_with_parent(parent)
    orders, answers = _claim_standard_streams()
    line = orders.readline()
    if not line:  # the owner prestarted this process and did not need it
        return 0
    settings = json.loads(line)
    keep_freed_memory()
    set_switch_interval()
    keep_received_modules()
    try:
        server = WorkerServer(WorkerConfig(**settings))
    except DsnbError as error:
        _answer(answers, {"failed": type(error).__name__, "what": error.what, "did": error.did, "hint": error.hint})
        return 1
    try:
        _answer(answers, {"uid": server.uid, "name": server.name, "address": server.address})
        _serve(server, orders, parent)
    except _TerminatedError:
        server.leave(_LEAVE_S)
    finally:
        # User code that never returns must not keep the process alive. faulthandler's timer needs no GIL.
        faulthandler.dump_traceback_later(_END_S, exit=True)
        server.stop()
    return 0


def _claim_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Reserve standard input and output for the owner; user code prints to standard error and reads an empty input."""
    orders = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)  # line-buffered, so that a crash loses no line
    return orders, answers


def _answer(answers: BinaryIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    answers.close()


def _serve(server: WorkerServer, orders: BinaryIO, parent: int | None) -> None:
    """Wait for a reason to end: the owner's request, its end, or the worker's own."""
    draining = False
    while parent in (None, os.getppid()) and not server.stopped and not (draining and server.idle):
        # Poll faster while draining: the worker is to end soon after its last reader.
        ready, _, _ = select.select([orders], [], [], 0.05 if draining else _PARENT_POLL_S)
        if ready:
            if orders.readline() != b"drain\n":
                return
            draining = True
            server.drain()


class _TerminatedError(SystemExit):
    """SIGTERM arrived. A SystemExit, so that a worker that has not started yet ends quietly."""


def _on_sigterm(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, _on_second_sigterm)
    raise _TerminatedError(0)


def _on_second_sigterm(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())

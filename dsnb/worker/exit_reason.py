"""The reason why a worker process ended, in words, and the last lines of its output."""

from __future__ import annotations

import signal
from collections.abc import Sequence

_NATIVE_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_TAIL_LINES = 5


def exit_reason(returncode: int, *, memory_ran_out: bool) -> str:
    """Explain the return code of a process that ended without a request to do so.

    Args:
        returncode: The exit code, or minus the number of the signal that ended it.
        memory_ran_out: Whether the kernel's OOM killer killed any process while this one ran.

    Returns:
        A verb phrase that follows "its process ...".

    Example:
        >>> exit_reason(3, memory_ran_out=False)
        'ended itself with exit code 3, as os._exit(3) in user code does'
    """
    if returncode >= 0:
        return f"ended itself with exit code {returncode}, as os._exit({returncode}) in user code does"
    name = _signal_name(-returncode)
    if -returncode == signal.SIGKILL and memory_ran_out:
        return f"was ended by {name} because memory ran out, as the system's own count of such ends says"
    if -returncode == signal.SIGKILL:
        return f"was ended by {name} from outside; the system does that too when memory runs out"
    if -returncode in _NATIVE_CRASHES:
        return f"was ended by {name}: native code that the pipeline calls crashed"
    return f"was ended by {name} from outside"


def output_tail(lines: Sequence[str]) -> str:
    """The last output of a process, on one line. After a crash: the error, and the stack of the thread that crashed.

    Example:
        >>> output_tail(["loading", "Fatal Python error: Aborted", "", "Current thread 0x1:", '  File "a.py", line 3'])
        'loading | Fatal Python error: Aborted | File "a.py", line 3'
    """
    crash = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if crash is None:
        return _joined(lines[-_TAIL_LINES:])
    thread = next((at for at in range(crash, len(lines)) if lines[at].startswith("Current thread")), len(lines))
    return _joined([*lines[max(0, crash - 1) : crash + 1], *lines[thread + 1 : thread + 1 + _TAIL_LINES]])


def _joined(lines: Sequence[str]) -> str:
    return " | ".join(line.strip() for line in lines if line.strip()) or "nothing"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

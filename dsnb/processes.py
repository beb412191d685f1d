"""When a process started: what tells it from another that has its id later."""

from __future__ import annotations

import os


def start_time(pid: int) -> str:
    """When a process started, in the kernel's own words; empty when it is gone (zombies are).

    Where there is no /proc, "0" says that it lives.
    """
    try:
        # A process may have any bytes for a name, parentheses too.
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if os.path.exists("/proc/self") or not _answers(pid) else "0"
    except ProcessLookupError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Every failpoint, what the tests do at it, and what holds afterwards.

`docs/reliability.md` has this as a table (`tools/reliability.py`). A failpoint that is not here fails
`test_failpoints.py`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dsnb
from dsnb.storage.failpoints import FAILPOINTS, Fault

_ROOT = Path(dsnb.__file__).parent


def import_all() -> None:
    """Import all modules with failpoints."""
    for path in sorted(_ROOT.rglob("*.py")):
        if "Failpoint" in path.read_text():
            importlib.import_module(".".join(("dsnb", *path.relative_to(_ROOT).with_suffix("").parts)))


import_all()


def _starting(*beginnings: str) -> tuple[str, ...]:
    return tuple(sorted(name for name in FAILPOINTS if name.startswith(beginnings)))


@dataclass(frozen=True)
class Points:
    """Failpoints at which the same holds.

    Attributes:
        names: Their names.
        where: Who passes them, and when.
        holds: What holds after a fault at any of them.
        tests: The file with the tests; a path below `tests`.
        actions: What the tests do there.
    """

    names: tuple[str, ...]
    where: str
    holds: str
    tests: str
    actions: tuple[str, ...]

    @property
    def fails(self) -> tuple[str, ...]:
        """Those at which a disk may be full."""
        return tuple(name for name in self.names if FAILPOINTS[name].error is not None)


HERE: Final = "faults/test_failpoints.py"
_CALLS: Final = (
    "Hello", "Register", "PutBlob", "Join", "Position", "Receipt", "Status", "Control", "Dismiss", "Forget",
    "ConfirmEnd",
)  # fmt: skip
"""What clients ask the dispatcher."""

CLIENT: Final = Points(
    (*(f"call {name}" for name in (*_CALLS, "Peek", "Ping")), "credit send"),
    "a client, around a request and its reply, or around a message to a worker that it may send more",
    "killed: each element arrives, and only what the client had last may come again to its successor; "
    "suspended for less than its lease: each element once",
    HERE,
    ("kill", "suspend"),
)
DISPATCHER: Final = Points(
    (*(f"answer {name}" for name in (*_CALLS, "GetTask", "GetSplits")), "decision carry out"),
    "the dispatcher, around a request's handling, or after a decision is in the journal and before it takes effect",
    "killed and started again, or suspended past all leases: each element once; a call that fails can be repeated",
    HERE,
    ("kill", "suspend"),
)
JOURNAL: Final = Points(
    ("journal commit", "blob name"),
    "the dispatcher, where a decision or a pipeline gets durable",
    "each element once, also if the disk is full once; the file is whole, as before or as after",
    HERE,
    ("kill", "suspend", "fail"),
)
WORKER: Final = Points(
    ("call GetSplits", "elements send", "answer Ping", "answer Peek"),
    "a worker, around a request to the dispatcher, elements to a client, or an answer",
    "killed, or suspended past its lease: each element once",
    HERE,
    ("kill", "suspend"),
)
GET_TASK: Final = Points(
    ("call GetTask",),
    "a worker; only if a client reaches it before the order to begin the task does, so the tests delay that order",
    "as above",
    HERE,
    ("kill", "suspend"),
)
SPILL: Final = Points(
    ("spill write",),
    "a worker, around a write to its `spill_dir`, whose room was reserved before",
    "killed, or suspended past its lease: each element once to each trainer, also to the one that lags",
    HERE,
    ("kill", "suspend"),
)
RECORDING: Final = Points(
    _starting("format ", "about ", "used ", "shelf ", "slot ", "manifest ", "segment ", "beat ", "recording "),
    "a recording in a folder",
    "each pass gets all elements; killed: at most a chunk is computed again and nothing is left over; full disk: "
    "the pass goes on without recording",
    "cache/test_crashes.py",
    ("kill", "suspend (a third of them, all with `-m soak`)", "fail"),
)
ON_REDIS: Final = Points(
    _starting("redis "),
    "a recording on a Redis server",
    "each pass gets all elements; killed: at most a chunk is computed again and nothing is left over",
    "cache/test_crashes.py",
    ("kill", "suspend (with `-m soak`)"),
)
TABLE: Final = (
    CLIENT,
    DISPATCHER,
    JOURNAL,
    WORKER,
    GET_TASK,
    SPILL,
    Points(
        ("token name", "port name", "connection file name", "private file write", "private file name", "blob sweep"),
        "whoever writes a token, the dispatcher's port, the file by which a service is found, a certificate or join "
        "file, or removes what dead processes left",
        "the file is whole: the old one until it gets its name, then the new one; the next process writes it again",
        HERE,
        ("kill", "suspend", "fail"),
    ),
    Points(
        ("run file commit",),
        "the process that records a run, for each snapshot",
        "all snapshots before it are there and whole",
        HERE,
        ("kill", "suspend", "fail"),
    ),
    Points(
        _starting("saved "),
        "`Dataset.save`",
        "nothing is there until the folder gets its name, and then all; it can be saved again or loaded",
        HERE,
        ("kill", "suspend", "fail"),
    ),
    Points(
        _starting("result ", "entry "),
        "the training cache",
        "each stored result is whole, none is an orphan, the sizes are counted right, and results can be stored",
        HERE,
        ("kill", "suspend", "fail"),
    ),
    RECORDING,
    ON_REDIS,
)

ROLES: Final[dict[str, dict[str, str]]] = {
    "client": dict.fromkeys(CLIENT.names, "all"),
    "dispatcher": dict.fromkeys((*DISPATCHER.names, *JOURNAL.names), "all"),
    "worker": {
        "call GetSplits": "",
        "elements send": "",
        "answer Ping": "asked",
        "answer Peek": "asked",
        "call GetTask": "asked",
        "spill write": "spills",
    },
}
"""The failpoints of a running service, by who passes them. Suspensions with the same word are tried in one run."""


class NotedFault(Fault):
    """A fault that leaves a note in a file when it is done.

    Args:
        text: What `DSNB_FAULT` says.
        note: The file.
    """

    def __init__(self, text: str, note: Path) -> None:
        super().__init__(text)
        self._note = note

    def act(self) -> None:
        with self._note.open("a") as file:
            file.write(f"{self.name}/{self.when}\n")
        super().act()

"""What a test may not leave behind, and how it is found.

A kind of thing (threads, descriptors, ...) has a `look` that gives a key for each one there is now, and a `describe`
that puts one into words. What is there after a test and was not before it is a leak, unless it goes away by itself
within `GRACE` seconds: threads need a moment to end after whoever waited for their work was told.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsnb.wire import discovery
from dsnb.wire.channel import open_channels
from dsnb.wire.threads import OnDemandExecutor
from tests.support.sockets import describe_socket

GRACE = 60.0  # a task without readers goes after 5 s, and later where ticks come late on a busy machine
_SLABS = "/memfd:dsnb-slabs"

Keys = frozenset[Hashable]


@dataclass(frozen=True, kw_only=True)
class ResourceKind:
    """One kind of thing that can be left behind."""

    find: Callable[[], Iterable[Hashable]]
    describe: Callable[[Hashable], str] = str


def _threads() -> Iterator[threading.Thread | OnDemandExecutor]:
    """All threads; for those of an executor, the executor: it ends and makes threads as work comes."""
    for thread in threading.enumerate():
        # tqdm's monitor is one thread for the whole process, made with the first bar and kept on purpose.
        if type(thread).__name__ != "TMonitor":
            yield _executor_of(thread) or thread


def _executor_of(thread: threading.Thread) -> OnDemandExecutor | None:
    owner = getattr(getattr(thread, "_target", None), "__self__", None)
    return owner if isinstance(owner, OnDemandExecutor) else None


def _describe_threads(owner: Hashable) -> str:
    if isinstance(owner, OnDemandExecutor):
        return "\n".join(_describe_thread(one) for one in threading.enumerate() if _executor_of(one) is owner)
    assert isinstance(owner, threading.Thread)
    return _describe_thread(owner)


def _describe_thread(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (just ended)\n"
    return f"{thread!r}, which stands at\n{stack}"


def _children() -> Iterator[tuple[int, str]]:
    for number in _possible_children():
        folder = Path(f"/proc/{number}")
        try:
            # The name in parentheses may hold anything; what follows its last parenthesis is state and parent.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state not in "ZX":
                yield number, (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it ended while we looked
            continue


def _possible_children() -> set[int]:
    try:
        return {int(n) for task in Path("/proc/self/task").iterdir() for n in (task / "children").read_text().split()}
    except OSError:  # a thread ended meanwhile, or this kernel has no lists of children: look at all processes
        return {int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()}


def _descriptors() -> Iterator[tuple[int, str]]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # the descriptor of this very listing, closed since
            continue
        # nbval opens /dev/null for each kernel and leaves it to the collector; it is nobody's connection or file.
        if target != os.devnull:
            yield int(link.name), target


def _slabs() -> list[tuple[int, str]]:
    return [key for key in _descriptors() if key[1].startswith(_SLABS)]


def _other_descriptors() -> list[tuple[int, str]]:
    return [key for key in _descriptors() if not key[1].startswith(_SLABS)]


def _describe_descriptor(key: Hashable) -> str:
    assert isinstance(key, tuple)
    number, target = key
    return f"{number} -> {describe_socket(target) if target.startswith('socket:') else target}"


def _files(folder: str, pattern: str) -> list[str]:
    return [str(path) for path in Path(folder).glob(pattern)]


def _connection_files() -> list[str]:
    discovery.running()  # removes what killed processes had to leave, as it promises
    return _files(os.environ["DSNB_RUNTIME_DIR"], "**/*")


def _channels() -> list[tuple[str, int]]:
    return [(channel.address, id(channel)) for channel in open_channels()]


KINDS = {
    "channels": ResourceKind(find=_channels),
    "threads": ResourceKind(find=_threads, describe=_describe_threads),
    "temporary folders": ResourceKind(find=lambda: _files(tempfile.gettempdir(), "dsnb*")),
    "connection files": ResourceKind(find=_connection_files),
}
if Path("/proc/self/fd").exists():  # elsewhere than on Linux the rest cannot be told without more tools
    KINDS |= {
        "child processes": ResourceKind(find=_children),
        "descriptors": ResourceKind(find=_other_descriptors, describe=_describe_descriptor),
        "slabs": ResourceKind(find=_slabs, describe=_describe_descriptor),
        "shared memory": ResourceKind(find=lambda: _files("/dev/shm", "*dsnb*")),
    }

_reported: set[Hashable] = set()


def was_reported(key: Hashable) -> bool:
    """Whether an earlier test left this behind, and was told of it or had failed anyhow."""
    return key in _reported


def census() -> dict[str, Keys]:
    """Everything there is now, by kind."""
    return {name: frozenset(kind.find()) for name, kind in KINDS.items()}


def leftovers(before: dict[str, Keys], later: Iterable[str] = ()) -> dict[str, list[Hashable]]:
    """What is there now, was not `before`, does not go away by itself, and has not been told of; some kinds `later`."""
    deadline = time.monotonic() + GRACE
    found = _new_since(before, later)
    while found and time.monotonic() < deadline:
        # An iterator that nobody holds releases its stream when it is collected; a thread that ends may have held one.
        gc.collect()
        time.sleep(0.02)
        found = _new_since(before, later)
    return found


def _new_since(before: dict[str, Keys], later: Iterable[str] = ()) -> dict[str, list[Hashable]]:
    new = {name: [key for key in now - before[name] if key not in _reported] for name, now in census().items()}
    if "descriptors" in new:
        new["descriptors"] = _without_grpc(new["descriptors"])
    return {name: keys for name, keys in new.items() if keys and name not in later}


def _without_grpc(descriptors: list[Hashable]) -> list[Hashable]:
    # gRPC's event engine has one epoll descriptor and one eventfd for the whole process. It makes them at the first
    # use and closes them at a time of its own after the last, so a second engine may be there before the first has
    # gone. Servers and channels that leak show as sockets and threads.
    spared: Counter[str] = Counter()
    kept: list[Hashable] = []
    for key in descriptors:
        assert isinstance(key, tuple)
        target = key[1]
        if target in {"anon_inode:[eventpoll]", "anon_inode:[eventfd]"} and spared[target] < 2:
            spared[target] += 1
        else:
            kept.append(key)
    return kept


@contextmanager
def assert_no_leaks(
    what: str,
    except_for: Iterable[str] = (),
    ignored_if: Callable[[], bool] = lambda: False,
    later: Sequence[str] = (),
) -> Iterator[None]:
    """Fail with a description of all that the body left behind; each thing is told of once.

    Args:
        what: Who is to blame, as in "this test" or "a fixture of this module".
        except_for: Kinds that are not looked at.
        later: Kinds that a later look, at the end of something longer, is for.
        ignored_if: Asked at the end; if true, what is left is passed over, now and later.
    """
    before = census()
    yield
    if ignored_if():
        # Kinds that are for a later look, and what would be spared, are among what a failed test holds: its threads may
        # go on for long with a memory mapped and a channel of gRPC's open, and the module's or the session's look is
        # not to blame them for that.
        _reported.update(*(now - before[name] for name, now in census().items()))
        return
    spared = set(except_for)
    lines = []
    for name, keys in leftovers(before, later).items():
        lines += [f"{name}: {KINDS[name].describe(key)}" for key in keys if name not in spared]
        _reported.update(keys)
    if lines:
        raise AssertionError("\n".join([f"{what} left behind:", *lines]))

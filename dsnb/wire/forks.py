"""What a fork leaves in the child: handles that raise with advice, and nothing that holds on to the parent's service.

Theory of operation. A forked child has one thread. gRPC's threads and ours are gone from it, and whatever lock they
held stays locked for ever: a call made there, or an object of gRPC's that is taken apart there, may hang or crash. So
nothing of it is used again: after the fork, before any other code runs in the child,

* the generation of the process goes up, by which handles from before the fork are told from new ones;
* objects from before the fork are taken out of the garbage collector's sight;
* sockets of servers and channels, and what else was kept from children, are replaced by /dev/null, so that a port is
  free, a connection broken, and memory given back when the parent is gone, however long its child may live.

A child that a user's function forks in one of dsnb's threads, as in a worker, does not outlive the process that it was
forked from: it watches that process, and ends with it. Where the function returns in the child as well, the child ends
at once: what it would go on to make nobody reads.

The hook is set when the first service, channel or iterator is made, not at import.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import threading
import time
from contextlib import suppress

from dsnb.errors import FailedPreconditionError
from dsnb.limits import check_files
from dsnb.processes import start_time

_LOOK_S = 0.5
_OURS = "dsnb-"
"""How the names of dsnb's threads begin."""

_generation = 0
_owner = 0
"""The process in one of whose threads of dsnb's this one was forked; 0 for other processes."""
_pid = 0
_armed = False
_grpc: int | None = None
"""The generation in which gRPC was first used."""

_ports: set[int] = set()
_peers: set[tuple[str, int]] = set()
_kept: set[int] = set()
"""Descriptors that are not for children."""


def generation() -> int:
    """How many forks lie between this process and the one that imported dsnb; from now on they are counted."""
    global _armed, _pid
    if not _armed:
        _armed, _pid = True, os.getpid()
        os.register_at_fork(after_in_child=_in_child)
    return _generation


def forked_since(made: int) -> bool:
    """Whether a handle made in that generation came here by a fork."""
    return made != _generation


def end_stranded(made: int) -> None:
    """End this process if it is a child that a user's function forked in one of dsnb's threads, and left.

    Args:
        made: The generation in which what called the function was made.
    """
    if made != _generation and _owner:
        os._exit(0)


def uses_grpc() -> None:
    """To be called before a server or a channel is made.

    Raises:
        FailedPreconditionError: see `check_grpc`.
    """
    global _grpc
    check_grpc()
    if _grpc is None:
        check_files()
        _grpc = generation()


def cut_off() -> bool:
    """Whether this process was forked from one that used gRPC: its servers and channels are the parent's."""
    return _grpc is not None and _grpc != _generation


def check_grpc() -> None:
    """Refuse what would hang.

    Raises:
        FailedPreconditionError: this process was forked from one that used gRPC.
    """
    if cut_off():
        raise inherited("a service cannot be used in this process")


def inherited(what: str) -> FailedPreconditionError:
    """The error for a handle that came here by a fork."""
    return FailedPreconditionError(
        f"{what}: it was forked (id {os.getpid()}) from one that uses dsnb, and threads and connections stay behind",
        did="the parent and its service are untouched",
        hint="read in the parent (a PyTorch loader: num_workers=0, as dsnb's workers do the work), or start "
        'this process with multiprocessing.get_context("spawn") and call dsnb.connect() in it',
    )


def listens(port: int) -> None:
    """Let a child close its copies of the sockets of a port that this process listens on."""
    _ports.add(port)


def calls(address: str) -> None:
    """Let a child close its copies of connections to a "host:port"."""
    host, _, port = address.rpartition(":")
    _peers.add((host.strip("[]"), int(port)))


def keep_from_children(descriptor: int) -> None:
    """Let a child close its copy of a descriptor."""
    generation()
    _kept.add(descriptor)


def leave_to_children(descriptor: int) -> None:
    """Learn that a descriptor is about to be closed, and its number may soon be another's."""
    _kept.discard(descriptor)


def _in_child() -> None:
    global _generation, _owner, _pid
    _generation += 1
    parent, _pid = _pid, os.getpid()
    if threading.current_thread().name.startswith(_OURS):
        _owner = _owner or parent  # a child's child may be without a parent on purpose, as daemons are
        with suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=_end_with, args=(_owner,), name="dsnb-watch-owner", daemon=True).start()
    if cut_off():
        gc.freeze()
        _let_go_of_sockets()


def _end_with(owner: int) -> None:
    began = start_time(owner)
    while began and start_time(owner) == began:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _let_go_of_sockets() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _kept:
        os.dup2(null, descriptor, inheritable=False)
    _kept.clear()
    for entry in os.listdir("/dev/fd"):
        descriptor = int(entry)
        with suppress(OSError):  # the descriptor of this very listing, closed since
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _of_dsnb(descriptor):
                os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _of_dsnb(descriptor: int) -> bool:
    probe = socket.socket(fileno=descriptor)
    try:
        if probe.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if probe.getsockname()[1] in _ports:
            return True
        with suppress(OSError):  # not connected
            host, port, *_ = probe.getpeername()
            return (host.removeprefix("::ffff:"), port) in _peers  # gRPC's sockets are of IPv6, whatever they talk
        return False
    finally:
        probe.detach()

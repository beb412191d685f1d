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
from dsnb.processes import start_time
from dsnb.system_limits import check_files

_POLL_INTERVAL_S = 0.5
_THREAD_PREFIX = "dsnb-"
"""How the names of dsnb's threads begin."""

_generation = 0
_owner_pid = 0
"""The process in one of whose threads of dsnb's this one was forked; 0 for other processes."""
_pid = 0
_hook_registered = False
_grpc_generation: int | None = None
"""The generation in which gRPC was first used."""

_ports: set[int] = set()
_peers: set[tuple[str, int]] = set()
_fds: set[int] = set()
"""Descriptors that are not for children."""


def generation() -> int:
    """How many forks lie between this process and the one that imported dsnb; from now on they are counted."""
    global _hook_registered, _pid
    if not _hook_registered:
        _hook_registered, _pid = True, os.getpid()
        os.register_at_fork(after_in_child=_after_fork_in_child)
    return _generation


def forked_since(made: int) -> bool:
    """Whether a handle made in that generation came here by a fork."""
    return made != _generation


def exit_stranded_child(made: int) -> None:
    """End this process if it is a child that a user's function forked in one of dsnb's threads, and left.

    Args:
        made: The generation in which what called the function was made.
    """
    if made != _generation and _owner_pid:
        os._exit(0)


def prepare_for_grpc() -> None:
    """To be called before a server or a channel is made.

    Raises:
        FailedPreconditionError: see `check_grpc`.
    """
    global _grpc_generation
    check_grpc()
    if _grpc_generation is None:
        check_files()
        _grpc_generation = generation()


def in_forked_child() -> bool:
    """Whether this process was forked from one that used gRPC: its servers and channels are the parent's."""
    return _grpc_generation is not None and _grpc_generation != _generation


def check_grpc() -> None:
    """Refuse what would hang.

    Raises:
        FailedPreconditionError: this process was forked from one that used gRPC.
    """
    if in_forked_child():
        raise inherited_error("a service cannot be used in this process")


def inherited_error(what: str) -> FailedPreconditionError:
    """The error for a handle that came here by a fork."""
    return FailedPreconditionError(
        f"{what}: it was forked (id {os.getpid()}) from one that uses dsnb, and threads and connections stay behind",
        did="the parent and its service are untouched",
        hint="read in the parent (a PyTorch loader: num_workers=0, as dsnb's workers do the work), or start "
        'this process with multiprocessing.get_context("spawn") and call dsnb.connect() in it',
    )


def register_port(port: int) -> None:
    """Let a child close its copies of the sockets of a port that this process listens on."""
    _ports.add(port)


def register_peer(address: str) -> None:
    """Let a child close its copies of connections to a "host:port"."""
    host, _, port = address.rpartition(":")
    _peers.add((host.strip("[]"), int(port)))


def register_fd(descriptor: int) -> None:
    """Let a child close its copy of a descriptor."""
    generation()
    _fds.add(descriptor)


def unregister_fd(descriptor: int) -> None:
    """Learn that a descriptor is about to be closed, and its number may soon be another's."""
    _fds.discard(descriptor)


def _after_fork_in_child() -> None:
    global _generation, _owner_pid, _pid
    _generation += 1
    parent, _pid = _pid, os.getpid()
    if threading.current_thread().name.startswith(_THREAD_PREFIX):
        _owner_pid = _owner_pid or parent  # a child's child may be without a parent on purpose, as daemons are
        with suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=_exit_with_owner, args=(_owner_pid,), name="dsnb-watch-owner", daemon=True).start()
    if in_forked_child():
        gc.freeze()
        _replace_inherited_fds()


def _exit_with_owner(owner: int) -> None:
    began = start_time(owner)
    while began and start_time(owner) == began:
        time.sleep(_POLL_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _replace_inherited_fds() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _fds:
        os.dup2(null, descriptor, inheritable=False)
    _fds.clear()
    for entry in os.listdir("/dev/fd"):
        descriptor = int(entry)
        with suppress(OSError):  # the descriptor of this very listing, closed since
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _is_our_socket(descriptor):
                os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _is_our_socket(descriptor: int) -> bool:
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

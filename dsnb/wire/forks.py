"""Fork safety: in a forked child, inherited handles raise an error with advice and keep nothing of the parent's open.

Theory of operation. A forked child has one thread. gRPC's threads and dsnb's do not exist in it, and any lock that they
held stays locked for ever: a gRPC call, or the destructor of a gRPC object, may hang or crash there. So the child never
uses inherited gRPC objects again. After the fork, before any other code runs in the child,

* the generation of the process goes up, which distinguishes handles from before the fork from new ones;
* objects from before the fork are hidden from the garbage collector (`gc.freeze`), so that no destructor runs;
* sockets of servers and channels, and other registered descriptors, are replaced by /dev/null. The parent's exit then
  frees its port, breaks its connections and releases its memory, however long the child lives.

A child that a user's function forks in one of dsnb's threads, for example in a worker, must not outlive its parent: it
polls the parent process and kills itself when that is gone. If the function returns in the child as well, the child
exits at once, because no process would read what it produces. It may outlive the service of a thread worker, because
the forking thread does not say whose the child is: a pool that a module of the kernel keeps forks its processes at its
first use, which may be in a user's function, and would break if they ended with the service.

The fork hook is registered when the first service, channel or iterator is made, not at import.
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
"""The prefix of the names of dsnb's threads."""

_generation = 0
_owner_pid = 0
"""The process id of the parent if this process was forked in one of dsnb's threads; else 0."""
_pid = 0
_hook_registered = False
_grpc_generation: int | None = None
"""The generation in which gRPC was first used."""

_ports: set[int] = set()
_peers: set[tuple[str, int]] = set()
_fds: set[int] = set()
"""Descriptors that children must not keep open."""


def generation() -> int:
    """How many forks separate this process from the one that registered the fork hook; the first call registers it."""
    global _hook_registered, _pid
    if not _hook_registered:
        _hook_registered, _pid = True, os.getpid()
        os.register_at_fork(after_in_child=_after_fork_in_child)
    return _generation


def forked_since(made: int) -> bool:
    """Whether a handle made in generation `made` was inherited through a fork."""
    return made != _generation


def exit_stranded_child(made: int) -> None:
    """End this process if it is a child that a user's function forked in one of dsnb's threads and then returned.

    Args:
        made: The generation in which the object that called the function was made.
    """
    if made != _generation and _owner_pid:
        os._exit(0)


def prepare_for_grpc() -> None:
    """Prepare the process for gRPC; must be called before a server or a channel is made.

    Raises:
        FailedPreconditionError: see `check_grpc`.
    """
    global _grpc_generation
    check_grpc()
    if _grpc_generation is None:
        check_files()
        _grpc_generation = generation()


def in_forked_child() -> bool:
    """Whether this process was forked from one that used gRPC, so that its servers and channels are the parent's."""
    return _grpc_generation is not None and _grpc_generation != _generation


def check_grpc() -> None:
    """Refuse a gRPC call that could hang in this process.

    Raises:
        FailedPreconditionError: this process was forked from one that used gRPC.
    """
    if in_forked_child():
        raise inherited_error("a service cannot be used in this process")


def inherited_error(what: str) -> FailedPreconditionError:
    """The error for a handle that was inherited through a fork."""
    return FailedPreconditionError(
        f"{what}: it was forked (id {os.getpid()}) from one that uses dsnb, and threads and connections stay behind",
        did="the parent and its service are untouched",
        hint="read in the parent (a PyTorch loader: num_workers=0, as dsnb's workers do the work), or start "
        'this process with multiprocessing.get_context("spawn") and call dsnb.connect() in it',
    )


def register_port(port: int) -> None:
    """Have forked children close their copies of the sockets of a port that this process listens on."""
    _ports.add(port)


def register_peer(address: str) -> None:
    """Have forked children close their copies of connections to a "host:port"."""
    host, _, port = address.rpartition(":")
    _peers.add((host.strip("[]"), int(port)))


def register_fd(descriptor: int) -> None:
    """Have forked children close their copy of a descriptor."""
    generation()
    _fds.add(descriptor)


def unregister_fd(descriptor: int) -> None:
    """Forget a descriptor; must be called before it is closed, because its number may be reused at once."""
    _fds.discard(descriptor)


def _after_fork_in_child() -> None:
    global _generation, _owner_pid, _pid
    _generation += 1
    parent, _pid = _pid, os.getpid()
    if threading.current_thread().name.startswith(_THREAD_PREFIX):
        _owner_pid = _owner_pid or parent  # keep the first: a daemon's direct parent exits on purpose
        with suppress(RuntimeError):  # the system starts no more threads
            threading.Thread(target=_exit_with_owner, args=(_owner_pid,), name="dsnb-watch-owner", daemon=True).start()
    if in_forked_child():
        gc.freeze()
        _replace_inherited_fds()


def _exit_with_owner(owner: int) -> None:
    began = start_time(owner)  # compared as well, because process ids are reused
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
        with suppress(OSError):  # the descriptor of this listing itself is closed by now
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
        with suppress(OSError):  # the socket is not connected
            host, port, *_ = probe.getpeername()
            return (host.removeprefix("::ffff:"), port) in _peers  # gRPC uses IPv6 sockets for IPv4 too
        return False
    finally:
        probe.detach()

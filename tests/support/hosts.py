"""Several hosts on one machine: network namespaces on a bridge, each with its own name and temporary files.

    host "a" 10.77.0.1 --- veth ---+
    host "b" 10.77.0.2 --- veth ---+--- bridge 10.77.0.254, in a namespace of its own
    host "c" 10.77.0.3 --- veth ---+

A process of a host has its own network, hostname, System V and POSIX shared memory, and its own file system over the
folder of temporary files and connection files. It finds the other hosts by their names. It shares the processors, the
kernel and the checkout with the others.
Making them needs root; nothing of the machine's own network is touched.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.support.processes import PythonProcess
from tests.support.requires import require, require_condition

_numbers = count(1)


class Host:
    """One host: runs Python with its network, name and files."""

    def __init__(self, name: str, namespace: str, address: str, folder: Path, names: dict[str, str]) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address
        self._folder = folder
        self._names = names

    def python(
        self, arguments: Sequence[str], *, env: dict[str, str] | None = None, stdin: bool = False
    ) -> PythonProcess:
        """A Python process on this host, as `PythonProcess`."""
        places = {"TMPDIR": self.folder, "DSNB_RUNTIME_DIR": f"{self.folder}/runtime", "HOME": self.folder}
        return PythonProcess(arguments, env={**places, **(env or {})}, stdin=stdin, prefix=self._prefix())

    @property
    def folder(self) -> str:
        """The folder for temporary files: the same path on all hosts, with other files on each."""
        return str(self._folder)

    def limit(self, megabits: int) -> None:
        """Let at most so many megabits in a second leave this host; 0 for no limit."""
        command = ["tc", "-n", self.namespace, "qdisc"]
        if megabits:
            bucket = ["rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms"]
            _run(*command, "replace", "dev", "eth0", "root", "tbf", *bucket)
        else:
            subprocess.run([*command, "del", "dev", "eth0", "root"], capture_output=True, check=False, timeout=10)

    def _prefix(self) -> list[str]:
        # Each program replaces the one before it, so that the process keeps its id.
        folder = shlex.quote(self.folder)
        names = "".join(f"{address} {name}\\n" for name, address in {"localhost": "127.0.0.1", **self._names}.items())
        script = (
            f"hostname {self.name} && mount -t tmpfs tmpfs {folder} && mount -t tmpfs tmpfs /dev/shm && "
            f"printf '{names}' > {folder}/hosts && mount --bind {folder}/hosts /etc/hosts && "
            # No name server: gRPC would wait for one that does not answer, although the name is in the file.
            f"touch {folder}/none && mount --bind {folder}/none /etc/resolv.conf && "
            f'mkdir -m 700 {folder}/runtime && cd {folder} && exec "$@"'
        )
        inside = ["unshare", "--uts", "--ipc", "--mount", "sh", "-ec", script, "host"]
        return ["ip", "netns", "exec", self.namespace, *inside]


class Network:
    """The hosts, by name, and the bridge between them."""

    def __init__(self, namespace: str, hosts: dict[str, Host]) -> None:
        self.namespace = namespace
        self._hosts = hosts
        self._next_device = count(1)

    @contextmanager
    def delayed(self, name: str, seconds: float) -> Iterator[None]:
        """Make packets to and from a host arrive that much later, for as long as the `with` block runs.

        A program forwards them, because not every kernel has netem.
        """
        port, number = f"port{list(self._hosts).index(name) + 1}", next(self._next_device)
        near, far = f"near{number}", f"far{number}"
        _run("ip", "-n", self.namespace, "link", "set", port, "nomaster")
        _run("ip", "-n", self.namespace, "link", "add", near, "type", "veth", "peer", "name", far)
        _run("ip", "-n", self.namespace, "link", "set", far, "master", "bridge", "up")
        _run("ip", "-n", self.namespace, "link", "set", near, "promisc", "on", "up")
        _run("ip", "-n", self.namespace, "link", "set", port, "promisc", "on")
        try:
            arguments = ["-m", "tests.support.delay_line", port, near, str(seconds)]
            with PythonProcess(arguments, prefix=self.command()) as delay_line:
                delay_line.wait_for_line("READY")
                yield
        finally:
            _run("ip", "-n", self.namespace, "link", "delete", near)
            _run("ip", "-n", self.namespace, "link", "set", port, "master", "bridge")

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def command(self, *arguments: str) -> list[str]:
        """A command in the namespace of the bridge, where all packets pass (the device `bridge`)."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


@contextmanager
def network(folder: Path, *names: str) -> Iterator[Network]:
    """Make hosts of these names, and remove them.

    Skips the test, with the reason, where that is not possible.

    Args:
        folder: An empty folder, over which each host has files of its own.
        names: The names of the hosts; their addresses are 10.77.0.1 and so on.

    Example:
        >>> with network(tmp_path, "a", "b") as hosts, hosts["a"].python(["-m", "dsnb", "dispatcher"]) as dispatcher:
        ...     dispatcher.wait_for_line("dispatcher ready")
    """
    for program in ("ip", "tc", "unshare"):
        require(program)
    require_condition(os.geteuid() == 0, "network namespaces need root")
    prefix = f"dsnb-{os.getpid()}-{next(_numbers)}"
    made: list[str] = []
    try:
        bridge = f"{prefix}-net"
        _add_namespace(bridge, made)
        _run("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", bridge, "address", "add", "10.77.0.254/24", "dev", "bridge")
        _run("ip", "-n", bridge, "link", "set", "bridge", "up")
        addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        hosts = {
            name: Host(name, _add_host(f"{prefix}-{name}", address, bridge, made), address, folder, addresses)
            for name, address in addresses.items()
        }
        yield Network(bridge, hosts)
    finally:
        for namespace in made:  # the devices in it go with it
            subprocess.run(["ip", "netns", "delete", namespace], check=True, timeout=10)


def _add_host(namespace: str, address: str, bridge: str, made: list[str]) -> str:
    port = f"port{len(made)}"
    _add_namespace(namespace, made)
    _run("ip", "-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    _run("ip", "-n", bridge, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
    _run("ip", "-n", namespace, "link", "set", "lo", "up")
    _run("ip", "-n", namespace, "link", "set", "eth0", "up")
    _run("ip", "-n", namespace, "route", "add", "default", "via", "10.77.0.254")
    return namespace


def _add_namespace(name: str, made: list[str]) -> None:
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False, timeout=10)
    require_condition(added.returncode == 0, f"this system makes no network namespaces: {added.stderr.strip()}")
    made.append(name)


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    assert ran.returncode == 0, f"{shlex.join(command)}: {ran.stderr}"

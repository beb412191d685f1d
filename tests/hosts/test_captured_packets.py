"""What somebody sees who captures all packets between the hosts."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsnb.wire.join_file import read_join_file
from tests.hosts.conftest import ServiceOnHosts
from tests.support.hosts import Network
from tests.support.requires import require
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ELEMENT = b"an element that must stay secret"
CAPTURED = b"a captured value that must stay secret"
_READ = f"""
captured = {CAPTURED!r}
data = dsnb.Dataset.range(200).map(lambda x: {ELEMENT!r} if captured else x).apply(
    dsnb.distribute("parallel_epochs", svc, compression=None)
)
print("READ", sum(element == {ELEMENT!r} for element in data))
"""


@contextmanager
def captured(hosts: Network, file: Path) -> Iterator[None]:
    """Write all packets that pass the bridge to a file."""
    require("tcpdump")
    command = hosts.command(
        "tcpdump", "--immediate-mode", "-U", "-Z", "root", "-i", "bridge", "-s", "0", "-w", str(file)
    )
    with subprocess.Popen(command, stderr=subprocess.PIPE) as tcpdump:
        try:
            wait_for(file.exists, what="tcpdump to begin", timeout=30)
            yield
        finally:
            tcpdump.send_signal(signal.SIGINT)
            tcpdump.communicate(timeout=30)


def packets_of_a_read(service: ServiceOnHosts, file: Path, written: Callable[[bytes], bool]) -> bytes:
    """What was captured, once it is `written`: tcpdump loses what it has not read when it is ended."""
    with captured(service.hosts, file):
        with service.reader(_READ) as reader:
            count = int(reader.wait_for_line("READ", timeout=60).split()[1])
        wait_for(lambda: written(file.read_bytes()), what="the packets to be written")
    assert count == 400
    return file.read_bytes()


def test_neither_token_nor_pipeline_nor_elements_are_seen(service: ServiceOnHosts, tmp_path: Path) -> None:
    seen = packets_of_a_read(service, tmp_path / "packets", lambda packets: len(packets) > 20_000)
    join_file = read_join_file(service.join_file)
    assert len(seen) > 20_000
    assert seen.count(join_file.token.encode()) == 0
    assert seen.count(ELEMENT) == seen.count(CAPTURED) == 0
    key = join_file.certificate.partition("PRIVATE KEY-----")[2].split("-----")[0].encode()
    assert not any(line in seen for line in key.split() if line)


def test_without_tls_elements_and_pipeline_are_seen_but_never_the_token(hosts: Network, tmp_path: Path) -> None:
    """The counterpart: the search above finds what is there."""
    file = tmp_path / "plain.join"
    command = ["-m", "dsnb", "dispatcher", "--host", "auto", "--no-tls", "--name", "plain", "--join-file", str(file)]
    with hosts["a"].python(command) as dispatcher:
        dispatcher.wait_for_line("dispatcher ready")
        workers = [hosts["b"].python(["-m", "dsnb", "worker", "--join", str(file)]) for _ in range(2)]
        with workers[0], workers[1]:
            for worker in workers:
                worker.wait_for_line("worker ready")
            plain = ServiceOnHosts(hosts, tmp_path, dispatcher)
            plain.join_file = file
            seen = packets_of_a_read(
                plain, tmp_path / "packets", lambda packets: ELEMENT in packets and CAPTURED in packets
            )
            warned = plain.output_of("print(svc.status())")
    assert seen.count(ELEMENT) > 0
    assert seen.count(CAPTURED) > 0
    assert seen.count(read_join_file(file).token.encode()) == 0
    assert "warning: connections are not encrypted" in warned

"""Workers of other hosts that join, or cannot; and files that only some hosts have."""

from __future__ import annotations

import json

import pytest

from tests.hosts.conftest import ServiceOnHosts

pytestmark = pytest.mark.slow


def test_a_worker_that_advertises_an_address_of_its_own_is_refused_with_that_address(service: ServiceOnHosts) -> None:
    """As one in a container that knows only its inner address."""
    command = ["-m", "dsnb", "worker", "--join", str(service.join_file), "--worker-address", "10.99.0.1:%port%"]
    with service.hosts["c"].python(command) as worker:
        assert worker.wait_for_exit(timeout=60) == 1
        assert "the worker says that it is at 10.99.0.1:" in worker.stderr
        assert "cannot be reached from here" in worker.stderr
        assert "--worker-address" in worker.stderr


def test_a_worker_joins_by_a_file_on_standard_input_and_leaves_on_sigterm(service: ServiceOnHosts) -> None:
    with service.hosts["c"].python(["-m", "dsnb", "worker", "--join", "-"], stdin=True) as worker:
        assert worker.popen.stdin is not None
        worker.popen.stdin.write(service.join_file.read_bytes())
        worker.popen.stdin.close()
        ready = worker.wait_for_line("worker ready")
        assert "10.77.0.3:" in ready
        worker.terminate()
        assert worker.wait_for_exit(timeout=60) == 0


def test_a_range_of_ports_is_kept_to(service: ServiceOnHosts) -> None:
    command = ["-m", "dsnb", "worker", "--join", str(service.join_file), "--port", "5100-5101"]
    with service.hosts["c"].python(command) as first, service.hosts["c"].python(command) as second:
        ports = {worker.wait_for_line("worker ready").partition("10.77.0.3:")[2][:4] for worker in (first, second)}
        assert ports == {"5100", "5101"}


def test_the_status_names_the_hosts_and_says_that_they_share_processors(service: ServiceOnHosts) -> None:
    with service.hosts["c"].python(["-m", "dsnb", "worker", "--join", str(service.join_file)]) as worker:
        worker.wait_for_line("worker ready")
        code = """
svc.wait_until(lambda status: len({worker.host for worker in status.workers}) == 2)
status = svc.status()
print(json.dumps([status.network, len({worker.host_id for worker in status.workers}), repr(status)]))
"""
        network, machines, text = json.loads(service.output_of(code))
        assert network == "tls"
        assert machines == 1  # the namespaces are hosts, and compete for the processors of one machine
        heading = next(line for line in text.splitlines() if "worker" in line and "address" in line)
        assert "host" in heading
        worker.terminate()
        worker.wait_for_exit(timeout=60)


def test_a_file_that_only_the_readers_host_has_is_missed_with_the_names_of_worker_and_host(
    service: ServiceOnHosts,
) -> None:
    code = """
import os
path = os.path.join(os.environ["TMPDIR"], "numbers.txt")
with open(path, "w") as file:
    file.write("1")

def read(_):
    with open(path) as file:
        return int(file.read())

data = dsnb.Dataset.range(1).map(read).apply(dsnb.distribute("parallel_epochs", svc))
try:
    list(data)
except FileNotFoundError as error:
    print("MISSED", json.dumps(error.__notes__))
"""
    with service.reader(code) as reader:
        notes = " ".join(json.loads(reader.wait_for_line("MISSED", timeout=60).partition(" ")[2]))
    assert "(host b)" in notes
    assert "on worker w" in notes
    assert "a worker on another host has other local files" in notes


def test_shared_memory_is_used_within_a_host_and_grpc_with_tls_between_hosts(service: ServiceOnHosts) -> None:
    code = """
data = dsnb.Dataset.range(50).apply(dsnb.distribute("parallel_epochs", svc, job_name=NAME))
elements = iter(data)
next(elements)
status = svc.wait_until(lambda status: status.job(NAME) and any(link.transfer for link in status.job(NAME).links))
print("TRANSFERS", json.dumps(sorted({link.transfer for link in status.job(NAME).links if link.transfer})))
"""
    seen = {}
    for host in ("b", "c"):
        text = f"NAME = 'transfers of {host}'\n{code}"
        with service.reader(text, on=host) as reader:
            seen[host] = json.loads(reader.wait_for_line("TRANSFERS", timeout=60).partition(" ")[2])
    assert seen == {"b": ["shared_memory"], "c": ["grpc"]}


def test_tcp_with_tls_is_used_between_hosts_where_it_is_asked_for(service: ServiceOnHosts) -> None:
    code = """
data = dsnb.Dataset.range(50).apply(dsnb.distribute("distributed_epoch", svc, data_transfer_protocol="tcp"))
print("CAME", json.dumps(sorted(int(x) for x in data)))
"""
    with service.reader(code, on="c") as reader:
        came = json.loads(reader.wait_for_line("CAME", timeout=60).partition(" ")[2])
    assert came == list(range(50))

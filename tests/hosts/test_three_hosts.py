"""Reading from a service whose dispatcher, workers and readers are on three hosts, over TLS."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from tests.hosts.conftest import ServiceOnHosts

pytestmark = pytest.mark.slow


def printed(service: ServiceOnHosts, *codes: str) -> list[Any]:
    """What readers on host "c" that run at the same time print as JSON."""
    with ExitStack() as stack:
        readers = [stack.enter_context(service.reader(code)) for code in codes]
        return [json.loads(reader.wait_for_line("[", timeout=90)) for reader in readers]


def test_every_part_advertises_the_address_that_routes_to_the_others(service: ServiceOnHosts) -> None:
    code = "print(json.dumps([svc.target, *(worker.address for worker in svc.status().workers)]))"
    [[target, *workers]] = printed(service, code)
    assert target.startswith("grpc://10.77.0.1:")
    assert [address.partition(":")[0] for address in workers] == ["10.77.0.2", "10.77.0.2"]


def test_off_gives_the_whole_dataset_from_each_worker(service: ServiceOnHosts) -> None:
    code = """
data = dsnb.Dataset.range(500).apply(dsnb.distribute(dsnb.ShardingPolicy.OFF, svc))
print(json.dumps([int(x) for x in data]))
"""
    [elements] = printed(service, code)
    assert Counter(elements) == dict.fromkeys(range(500), 2)


def test_dynamic_sharding_gives_each_element_once_over_all_readers(service: ServiceOnHosts) -> None:
    code = """
data = dsnb.Dataset.range(4000).map(lambda x: x + 1).apply(
    dsnb.distribute(dsnb.ShardingPolicy.DYNAMIC, svc, job_name="dynamic")
)
print(json.dumps([int(x) for x in data]))
"""
    first, second = printed(service, code, code)
    assert Counter(first + second) == dict.fromkeys(range(1, 4001), 1)


def test_static_sharding_gives_each_worker_its_shard(service: ServiceOnHosts) -> None:
    code = """
data = dsnb.Dataset.range(501).map(lambda x: (x, __import__("os").getpid())).apply(
    dsnb.distribute(dsnb.ShardingPolicy.DATA, svc)
)
print(json.dumps([[int(x), int(pid)] for x, pid in data]))
"""
    [pairs] = printed(service, code)
    assert sorted(x for x, _ in pairs) == list(range(501))
    by_worker: dict[int, set[int]] = {}
    for x, pid in pairs:
        by_worker.setdefault(pid, set()).add(x % 2)
    assert sorted(by_worker.values(), key=min) == [{0}, {1}]


def test_trainers_of_the_cross_trainer_cache_get_the_same_elements(service: ServiceOnHosts) -> None:
    """The elements are random, so only sharing makes two trainers see the same ones."""
    code = """
import random
data = dsnb.Dataset.range(300).map(lambda x: random.getrandbits(62)).apply(
    dsnb.distribute(
        dsnb.ShardingPolicy.OFF, svc, job_name="shared",
        cross_trainer_cache=dsnb.CrossTrainerCache(trainer_id=TRAINER, start_together=2),
    )
)
print(json.dumps([int(x) for x in data]))
"""
    one, other = (f"TRAINER = {name!r}\n{code}" for name in ("one", "other"))
    first, second = printed(service, one, other)
    assert len(set(first)) == 600
    assert sorted(first) == sorted(second)


def test_a_round_of_a_coordinated_read_is_of_one_worker(service: ServiceOnHosts) -> None:
    """Worker by worker, consumer 0 gets the even elements of a sequence and consumer 1 the odd ones that follow."""
    code = """
data = dsnb.Dataset.range(1_000_000).repeat().apply(
    dsnb.distribute(dsnb.ShardingPolicy.OFF, svc, job_name="rounds", consumer_index=INDEX, num_consumers=2)
)
elements = iter(data)
taken = [int(next(elements)) for _ in range(100)]
print(json.dumps(taken), flush=True)
sys.stdin.read()  # both consumers have to be there until both have finished
"""
    first, second = printed(service, *(f"INDEX = {index}\n{code}" for index in range(2)))
    assert [b - a for a, b in zip(first, second, strict=True)] == [1] * 100
    assert all(a % 2 == 0 for a in first)


def test_a_reader_far_away_gets_each_element_once(service: ServiceOnHosts) -> None:
    """A round trip takes 40 ms and the link lets 100 megabits through."""
    code = """
import numpy as np
data = dsnb.Dataset.range(300).map(lambda x: np.full(10_000, x)).apply(
    dsnb.distribute(dsnb.ShardingPolicy.DYNAMIC, svc, job_name="far")
)
print(json.dumps([int(x[0]) for x in data]))
"""
    service.hosts["b"].limit(100)
    try:
        with service.hosts.delayed("c", 0.02):
            [elements] = printed(service, code)
    finally:
        service.hosts["b"].limit(0)
    assert Counter(elements) == dict.fromkeys(range(300), 1)


def test_a_reader_follows_a_worker_that_joins_and_one_that_leaves(service: ServiceOnHosts) -> None:
    code = """
import time
data = dsnb.Dataset.range(3000).map(lambda x: (time.sleep(0.002), x)[1]).apply(
    dsnb.distribute(dsnb.ShardingPolicy.DYNAMIC, svc, job_name="leaving")
)
elements = iter(data)
taken = [int(next(elements)) for _ in range(50)]
print("BEGUN", flush=True)
taken += [int(x) for x in elements]
print(json.dumps(taken))
"""
    with service.reader(code) as reader:
        reader.wait_for_line("BEGUN", timeout=60)
        with service.hosts["c"].python(["-m", "dsnb", "worker", "--join", str(service.join_file)]) as worker:
            worker.wait_for_line("worker ready")
            worker.terminate()
            assert worker.wait_for_exit(timeout=60) == 0
        assert Counter(json.loads(reader.wait_for_line("[", timeout=90))) == dict.fromkeys(range(3000), 1)

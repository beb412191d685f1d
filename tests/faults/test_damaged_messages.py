"""Messages that arrive damaged are asked for again: the worker still has what was in them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import dsnb
from dsnb.errors import DataLossError
from tests.support.cluster import Cluster
from tests.support.proxy import poor_link

COUNT = 600
_MARK = 0xAB


def wide(index: int) -> tuple[int, np.ndarray]:
    """An element whose bytes on the wire are known, so that damage hits them and not what frames them."""
    return index, np.full(50_000, _MARK, np.uint8)


class Flips:
    """Flips one bit in some of the pieces that are in the midst of an element."""

    def __init__(self, which: Callable[[int], bool]) -> None:
        self._which = which
        self._seen = 0
        self.done = 0

    def __call__(self, data: bytes) -> bytes:
        if len(data) < 1_000 or data.count(_MARK) < len(data):
            return data
        self._seen += 1
        if not self._which(self._seen):
            return data
        self.done += 1
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@contextmanager
def behind_links(flips: Flips, workers: int) -> Iterator[Cluster]:
    """A service whose workers are reached through links that damage what they carry; the first one's alone."""
    with ExitStack() as stack, Cluster(workers=0) as cluster:
        for number in range(workers):
            proxy = stack.enter_context(poor_link(damage=flips if not number else None))
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            proxy.upstream = ("127.0.0.1", port)
            cluster.add_worker(remote=True, port=port, worker_address=proxy.address)
        yield cluster


def wide_elements(cluster: Cluster, mode: str) -> dsnb.Dataset:
    data = dsnb.Dataset.range(COUNT).map(wide)
    return data.apply(
        dsnb.distribute(mode, cluster.service, checksum=True, compression=None, data_transfer_protocol="grpc")
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode, each", [("distributed_epoch", 1), ("parallel_epochs", 2)])
def test_what_was_in_a_damaged_message_comes_again_and_nothing_comes_twice(mode: str, each: int) -> None:
    flips = Flips({20, 300, 600}.__contains__)
    with behind_links(flips, workers=2) as cluster:
        got = sorted(int(index) for index, _ in wide_elements(cluster, mode))
    assert flips.done
    assert got == sorted(each * list(range(COUNT)))


@pytest.mark.slow
def test_a_worker_whose_messages_all_arrive_damaged_is_given_up_with_one_error() -> None:
    flips = Flips(lambda _seen: True)
    got: list[int] = []
    with behind_links(flips, workers=2) as cluster:
        elements = iter(wide_elements(cluster, "parallel_epochs"))
        with pytest.raises(DataLossError, match="a damaged message arrived"):
            got.extend(int(index) for index, _ in elements)
        got += [int(index) for index, _ in elements]
    assert sorted(got) == list(range(COUNT))

"""Scenarios with a real dask.distributed; see `scenarios.py`."""

from __future__ import annotations

import importlib
import io
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import pytest

import dsnb
from dsnb.errors import FailedPreconditionError
from dsnb.worker.config import WorkerConfig
from tests.engines import lost_kernels
from tests.engines.scenarios import PACE_S, repeat_leaving
from tests.faults.chaos import paced
from tests.support.leaving import check_leaving
from tests.support.processes import is_running
from tests.support.waiting import wait_for

READY_S = 120.0
_engine: dict[str, Any] = {}


@contextmanager
def engine() -> Iterator[None]:
    """The Dask that scenarios share."""
    with running_dask() as (cluster, client):
        _engine.update(cluster=cluster, client=client)
        yield


@contextmanager
def running_dask(workers: int = 3) -> Iterator[tuple[Any, Any]]:
    """A Dask of this machine: a scheduler, and workers in processes with nannies; its cluster and a client."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        if workers:
            client.wait_for_workers(workers, timeout=READY_S)
        yield cluster, client


def restore(workers: int = 3) -> Any:
    """The client of the cluster, which has three workers again."""
    _engine["cluster"].scale(workers)
    wait_for(lambda: len(_engine["client"].nthreads()) == workers, what=f"{workers} Dask workers", timeout=READY_S)
    return _engine["client"]


def read(service: dsnb.DataService, count: int = 1_000) -> Counter[int]:
    numbers = dsnb.Dataset.range(count).map(paced(0.0005)).apply(dsnb.distribute("distributed_epoch", service))
    return Counter(int(x) for x in numbers)


def servers(client: Any = None) -> list[str]:
    """The plugins of dsnb in all Dask workers."""
    found = (client or _engine["client"]).run(lambda dask_worker: [str(name) for name in dask_worker.plugins])
    return [name for names in found.values() for name in names if name.startswith("dsnb-")]


def scenario_each_dask_worker_gets_a_worker_and_loses_it_with_the_service() -> None:
    client = restore()
    with dsnb.start(on=client) as service:
        assert service.workers == 3
        assert {worker.name for worker in service.status().workers} == {"w0", "w1", "w2"}
        assert read(service) == dict.fromkeys(range(1_000), 1)
        assert len(servers()) == 3
    assert servers() == []
    assert len(client.nthreads()) == 3
    assert client.submit(sum, [1, 2]).result(timeout=30) == 3


def scenario_a_killed_dask_worker_gets_its_worker_again_by_its_nanny() -> None:
    client = restore()
    with dsnb.start(on=client) as service:
        victims = service.status().workers[:2]
        for worker in victims:
            os.kill(worker.pid, signal.SIGKILL)
        old = {worker.uid for worker in victims}
        service.wait_until(
            lambda status: len(status.workers) == 3 and not old & {worker.uid for worker in status.workers}, READY_S
        )
        assert read(service) == dict.fromkeys(range(1_000), 1)
    assert servers() == []


def scenario_a_suspended_dask_worker_does_not_hold_up_the_end_of_a_service() -> None:
    client = restore()
    service = dsnb.start(on=client)
    (pid, *_) = client.run(os.getpid).values()
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        service.stop()
        assert time.monotonic() - began < 30.0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: servers() == [], what="the plugin to be taken away", timeout=READY_S)


def scale_down(pipeline: str) -> None:
    restore()
    with dsnb.start(workers=3, on=_engine["cluster"]) as service:

        def scale() -> None:
            service.scale(1)
            service.wait_until(lambda status: len(status.workers) == 1, READY_S)

        check_leaving(service, pipeline, [scale], pace_s=PACE_S)
        assert len(_engine["client"].nthreads()) == 1


def retire(pipeline: str) -> None:
    """Retire two Dask workers through Dask, not through the service."""
    # A Dask of its own: a cluster object goes on counting workers that others retired, and starts none for them.
    with running_dask() as (_, client), dsnb.start(on=client) as service:
        addresses = list(client.nthreads())[:2]

        def retire_two() -> None:
            client.retire_workers(addresses, close_workers=True)
            service.wait_until(lambda status: len(status.workers) == 1, READY_S)

        check_leaving(service, pipeline, [retire_two], pace_s=PACE_S)


def scenario_scaling_the_service_scales_the_cluster() -> None:
    restore()
    with dsnb.start(workers=2, on=_engine["cluster"]) as service:
        service.wait_until(lambda status: len(status.workers) == 2, READY_S)
        service.scale(3)
        service.wait_until(lambda status: len(status.workers) == 3, READY_S)


def scenario_scaling_down_in_the_middle_of_an_epoch_loses_nothing() -> None:
    scale_down("elements")


def scenario_scaling_down_in_the_middle_of_shuffled_batches_loses_nothing() -> None:
    scale_down("shuffled batches")


def scenario_dask_workers_that_are_retired_in_the_middle_of_an_epoch_lose_nothing() -> None:
    retire("elements")


def scenario_dask_workers_that_are_retired_in_the_middle_of_shuffled_batches_lose_nothing() -> None:
    retire("shuffled batches")


def soak_no_way_to_leave_loses_or_doubles_anything_in_ten_runs() -> None:
    repeat_leaving(scale_down, retire)


def scenario_a_client_of_an_address_cannot_scale_and_says_where_to() -> None:
    from distributed import Client

    client = restore()
    printed = io.StringIO()
    with Client(client.scheduler.address) as other, redirect_stdout(printed), dsnb.start(on=other) as service:
        assert service.workers == 3
        with pytest.raises(FailedPreconditionError, match="made of an address") as refused:
            service.scale(1)
        assert "dsnb.start(on=cluster)" in refused.value.hint


def scenario_an_adaptive_cluster_is_refused_until_it_is_scaled() -> None:
    restore()
    cluster = _engine["cluster"]
    adaptive = cluster.adapt(minimum=3, maximum=3)
    with pytest.raises(FailedPreconditionError, match="the Dask cluster is adaptive") as refused:
        dsnb.start(on=cluster)
    assert "svc.autoscale" in refused.value.hint
    adaptive.stop()
    with dsnb.start(on=restore()) as service:
        assert service.workers == 3


def scenario_a_removed_worker_leaves_its_dask_worker_alone() -> None:
    client = restore()
    with dsnb.start(on=client) as service:
        service.remove(service.status().workers[0].name)
        service.wait_until(lambda status: len(status.workers) == 2, 60.0)
        assert read(service) == dict.fromkeys(range(1_000), 1)
        assert len(client.nthreads()) == 3


START_CELL = """
import dsnb
from distributed import Client
client = Client({address!r})
svc = dsnb.start(on=client)
"""


def kernels_are_killed(plan: lost_kernels.Plan) -> None:
    """A kernel knows the cluster by its address, so the cluster is scaled where it was started."""
    start = START_CELL.format(address=restore().scheduler.address)
    with lost_kernels.notebook() as kernel:
        for _ in range(plan.times):
            restore(plan.workers)
            lost = lost_kernels.LostKernel(kernel, plan, start, lambda: restore(plan.remaining), held)
            lost.work_and_be_killed()
            lost.nothing_is_held()
            restore(plan.remaining + 1)
            wait_for(lambda: registered(_engine["client"]) == [], what="the plugin to be taken away", timeout=30.0)


def held(pids: set[int]) -> list[str]:
    """What Dask still holds: workers of dsnb, with threads and children, tasks, and its own lost workers."""
    client = _engine["client"]

    def look(dask_worker: Any) -> list[str]:
        import multiprocessing
        import threading

        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("dsnb")]
        plugins = [plugin for name, plugin in dask_worker.plugins.items() if str(name).startswith("dsnb-")]
        serving = [str(plugin.server) for plugin in plugins if plugin.server is not None and not plugin.server.stopped]
        return [*threads, *serving, *map(str, multiprocessing.active_children())]

    living = set(client.run(os.getpid).values())
    tasks = client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
    lost = [f"process {pid}" for pid in pids - living if is_running(pid)]
    return [*(name for names in client.run(look).values() for name in names), *tasks, *lost]


def scenario_a_plugin_whose_dispatcher_is_gone_is_taken_away_by_the_first_dask_worker_that_gets_it() -> None:
    with running_dask(workers=0) as (cluster, client):
        client.register_plugin(plugin_of(free_port()))
        cluster.scale(3)
        client.wait_for_workers(3, timeout=READY_S)
        assert client.submit(sum, [1, 2]).result(timeout=60) == 3
        client.run(lambda: bool(importlib.import_module("dsnb.launchers.dask_plugin")))  # slow on a busy machine
        began = time.monotonic()
        wait_for(lambda: registered(client) == [], what="the plugin to be taken away", timeout=8.0)
        assert servers(client) == []
        sys.stderr.write(f"taken away {time.monotonic() - began:.1f} s after the Dask workers joined\n")


def scenario_a_dask_worker_that_closes_while_its_worker_starts_logs_no_traceback() -> None:
    """The dispatcher takes connections and does not answer."""
    from distributed import Client, LocalCluster

    with socket.create_server(("127.0.0.1", 0)) as silent, logged("distributed.worker") as told:
        silent.settimeout(READY_S)
        with (
            LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            thread = threading.Thread(target=register, args=(client, plugin_of(silent.getsockname()[1])))
            thread.start()
            for _ in range(2):  # whether something listens, and the worker
                silent.accept()[0].close()
        thread.join(READY_S)
    assert "Traceback" not in told.getvalue(), told.getvalue()


def register(client: Any, plugin: Any) -> None:
    with suppress(Exception):  # the cluster closes meanwhile
        client.register_plugin(plugin)


def plugin_of(port: int) -> Any:
    from dsnb.launchers.dask_plugin import DsnbPlugin

    address = f"127.0.0.1:{port}"
    return DsnbPlugin(f"dsnb-{address}", WorkerConfig(dispatcher_address=address, isolation="process", token="t"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def registered(client: Any) -> list[str]:
    """The plugins of dsnb that the scheduler sends to new Dask workers."""
    found: list[str] = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.worker_plugins))
    return [name for name in found if name.startswith("dsnb-")]


@contextmanager
def logged(name: str) -> Iterator[io.StringIO]:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger(name).addHandler(handler)
    try:
        yield text
    finally:
        logging.getLogger(name).removeHandler(handler)


def scenario_a_killed_kernel_leaves_no_worker_thread_port_or_task_in_the_cluster() -> None:
    kernels_are_killed(lost_kernels.SHORT)


def soak_three_killed_kernels_leave_no_worker_thread_port_or_task_in_the_cluster() -> None:
    kernels_are_killed(lost_kernels.LONG)

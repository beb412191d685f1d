"""Scenarios with a real Ray; see `scenarios.py`."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from unittest import mock

import pytest

import dsnb
from dsnb.errors import FailedPreconditionError
from dsnb.launchers import Ray
from dsnb.launchers.launcher import LaunchedWorker
from dsnb.worker.config import WorkerConfig
from tests.engines import lost_kernels
from tests.engines.scenarios import PACE_S, repeat_leaving
from tests.faults.chaos import paced
from tests.support.leaving import check_leaving
from tests.support.processes import is_running
from tests.support.waiting import wait_for

CPUS = 4
READY_S = 120.0


@contextmanager
def engine() -> Iterator[None]:
    """A Ray of this machine with four CPUs, whatever the machine has."""
    import ray

    start_ray()
    yield
    ray.shutdown()


def start_ray() -> None:
    import ray

    # On a busy machine, Ray's processes may miss a deadline of each other that no setting changes.
    for attempts_left in (2, 1, 0):
        try:
            _start_ray()
        except Exception:
            ray.shutdown()
            if not attempts_left:
                raise
        else:
            return


def _start_ray() -> None:
    import ray

    os.environ["RAY_raylet_start_wait_time_s"] = os.environ["RAY_gcs_server_request_timeout_seconds"] = "60"  # noqa: SIM112 - Ray's names
    ray.init(num_cpus=CPUS, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)


def free_cpus() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0.0))


def all_cpus_are_given_back() -> None:
    wait_for(lambda: free_cpus() == CPUS, what="all CPUs to be free again", timeout=60.0)


def read(service: dsnb.DataService, count: int = 1_000) -> Counter[int]:
    numbers = dsnb.Dataset.range(count).map(paced(0.0005)).apply(dsnb.distribute("distributed_epoch", service))
    return Counter(int(x) for x in numbers)


def scenario_workers_serve_from_actors_and_stop_with_the_service() -> None:
    with dsnb.start(workers=2, on="ray") as service:
        assert read(service) == dict.fromkeys(range(1_000), 1)
        assert free_cpus() == CPUS - 2
        pids = [worker.pid for worker in service.status().workers]
        assert len({*pids, os.getpid()}) == 3
    wait_for(lambda: not any(map(is_running, pids)), what="the actors to end", timeout=30.0)
    all_cpus_are_given_back()


def scenario_killed_workers_are_replaced_and_explained_and_scaling_gives_cpus_back() -> None:
    with dsnb.start(workers=4, on=Ray(num_cpus=1)) as service:
        before = service.status().workers
        for worker in before[:2]:
            os.kill(worker.pid, signal.SIGKILL)
        old = {worker.uid for worker in before[:2]}
        service.wait_until(
            lambda status: len(status.workers) == 4 and not old & {worker.uid for worker in status.workers}, READY_S
        )
        told = " ".join(event.text for event in service.status().events)
        assert "Ray says:" in told, told
        assert "worker w0 is being replaced" in told, told
        assert read(service) == dict.fromkeys(range(1_000), 1)
        service.scale(1)
        service.wait_until(lambda status: len(status.workers) == 1, 60.0)
        wait_for(lambda: free_cpus() == CPUS - 1, what="three CPUs to be given back", timeout=60.0)
    all_cpus_are_given_back()


def scenario_workers_that_cannot_be_placed_are_reported_and_join_when_there_is_room() -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        service = dsnb.start(workers=3, on=Ray(num_cpus=2))
    with service:
        told = printed.getvalue()
        assert "1 of 3 workers could not be placed: each needs 2 CPUs" in told, told
        assert "0 of 4 CPUs free" in told, told
        assert len(service.status().workers) == 2
        assert read(service) == dict.fromkeys(range(1_000), 1)
        service.remove("w0")
        service.wait_until(lambda status: len(status.workers) == 2, READY_S)
        assert read(service) == dict.fromkeys(range(1_000), 1)
    all_cpus_are_given_back()


def scenario_a_worker_that_ray_has_placed_counts_as_placed_while_it_starts_however_slowly() -> None:
    """Its dispatcher does not exist, so it does not answer meanwhile."""
    with worker_that_starts_slowly() as worker:
        assert [worker.placed for _ in range(300)] == [True] * 300


def scenario_what_is_said_of_workers_that_wait_does_not_contradict_the_free_resources() -> None:
    with worker_that_starts_slowly() as worker:
        wait_for(lambda: free_cpus() == CPUS - 1, what="its CPU to be taken", timeout=60.0)
        told = Ray(num_cpus=3).unplaced_text([worker], 3)
        assert told.startswith("Ray has not placed 1 of 3 workers yet; the service goes on without them"), told
        told = Ray(num_cpus=4).unplaced_text([worker], 3)
        assert "1 of 3 workers could not be placed: each needs 4 CPUs, and the Ray cluster has 3 of 4 CPUs free" in told


@contextmanager
def worker_that_starts_slowly() -> Iterator[LaunchedWorker]:
    worker = Ray(num_cpus=1).launch(WorkerConfig(dispatcher_address="127.0.0.1:9"), lambda _: None)
    try:
        wait_for(lambda: placement_states() == ["CREATED"], what="the worker to be placed", timeout=READY_S)
        yield worker
    finally:
        worker.stop(0.0)
    all_cpus_are_given_back()


def placement_states() -> list[str]:
    import ray

    states = [group["state"] for group in ray.util.placement_group_table().values()]
    return [state for state in states if state != "REMOVED"]


def scenario_workers_for_which_no_node_has_the_labels_are_reported_with_the_labels() -> None:
    printed = io.StringIO()
    with redirect_stdout(printed), dsnb.start(workers=1, on=Ray(label_selector={"pool": "gpu"})) as service:
        told = printed.getvalue()
        assert "1 of 1 worker could not be placed: each needs 1 CPU on a node with the label pool=gpu" in told, told
        assert not service.status().workers
    all_cpus_are_given_back()


def scenario_a_gpu_among_the_resources_is_one_of_ray_s_gpus() -> None:
    printed = io.StringIO()
    with redirect_stdout(printed), dsnb.start(workers=1, on=Ray(resources={"GPU": 1})) as service:
        assert "1 of 1 worker could not be placed: each needs 1 CPU, 1 GPU" in printed.getvalue(), printed.getvalue()
        assert not service.status().workers
    all_cpus_are_given_back()


def scale_down(pipeline: str) -> None:
    with dsnb.start(workers=3, on="ray") as service:
        service.wait_until(lambda status: len(status.workers) == 3, READY_S)

        def scale() -> None:
            service.scale(1)
            service.wait_until(lambda status: len(status.workers) == 1, READY_S)

        check_leaving(service, pipeline, [scale], pace_s=PACE_S)
    all_cpus_are_given_back()


def drain_actors(pipeline: str) -> None:
    with dsnb.start(workers=3, on="ray") as service:
        service.wait_until(lambda status: len(status.workers) == 3, READY_S)

        def drain(name: str) -> None:
            service.drain(name)
            service.wait_until(lambda status: name not in {worker.name for worker in status.workers}, READY_S)

        check_leaving(service, pipeline, [partial(drain, name) for name in ("w0", "w1")], pace_s=PACE_S)
        wait_for(lambda: free_cpus() == CPUS - 1, what="the CPUs of two actors to be given back", timeout=60.0)
    all_cpus_are_given_back()


def scenario_scaling_down_in_the_middle_of_an_epoch_loses_nothing() -> None:
    scale_down("elements")


def scenario_scaling_down_in_the_middle_of_shuffled_batches_loses_nothing() -> None:
    scale_down("shuffled batches")


def scenario_actors_that_are_drained_in_the_middle_of_an_epoch_lose_nothing() -> None:
    drain_actors("elements")


def scenario_actors_that_are_drained_in_the_middle_of_shuffled_batches_lose_nothing() -> None:
    drain_actors("shuffled batches")


def soak_no_way_to_leave_loses_or_doubles_anything_in_ten_runs() -> None:
    repeat_leaving(scale_down, drain_actors)


START_CELL = """
import ray, dsnb
ray.init(address={address!r}, log_to_driver=False)
svc = dsnb.start(workers={workers}, on=dsnb.launchers.Ray(num_cpus={cpus}))
"""


def kernels_are_killed(plan: lost_kernels.Plan) -> None:
    """The workers of a kernel share the four CPUs; some are killed, others are stopped, and the kernel is gone."""
    import ray

    address = ray.get_runtime_context().gcs_address
    start = START_CELL.format(address=address, workers=plan.workers, cpus=CPUS / plan.workers)
    with lost_kernels.notebook() as kernel:
        for _ in range(plan.times):
            lost = lost_kernels.LostKernel(kernel, plan, start, f"svc.scale({plan.remaining})", held)
            lost.work_and_be_killed()
            lost.nothing_is_held()


def held(pids: set[int]) -> list[str]:
    """What Ray still holds: processes of actors, placement groups and CPUs."""
    import ray

    groups = [name for name, group in ray.util.placement_group_table().items() if group["state"] != "REMOVED"]
    used = [] if free_cpus() == CPUS else [f"only {free_cpus()} CPUs are free"]
    return [*(f"process {pid}" for pid in pids if is_running(pid)), *groups, *used]


def scenario_a_killed_kernel_leaves_no_process_port_or_cpu_taken() -> None:
    kernels_are_killed(lost_kernels.SHORT)


def soak_three_killed_kernels_leave_no_process_port_or_cpu_taken() -> None:
    kernels_are_killed(lost_kernels.LONG)


def scenario_ray_knows_how_many_more_workers_it_could_place() -> None:
    assert Ray(num_cpus=1).capacity() == CPUS
    assert Ray(num_cpus=3).capacity() == 1
    assert Ray(resources={"unknown": 1}).capacity() == 0


def scenario_a_process_without_ray_init_is_refused_with_the_line_to_type() -> None:
    code = "import dsnb; dsnb.start(on='ray')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "is not connected to a Ray cluster" in ended.stderr, ended.stderr
    assert "ray.init()" in ended.stderr


def scenario_a_ray_client_is_refused_with_the_remedy() -> None:
    from ray.util import client

    refused = pytest.raises(FailedPreconditionError, match=r"Ray Client \(ray://\)")
    with mock.patch.object(client.ray, "is_connected", return_value=True), refused:
        dsnb.start(on="ray")


def scenario_nodes_without_dsnb_are_named_with_the_line_that_installs_it() -> None:
    from dsnb.launchers.ray import _start_error

    error = _start_error(RuntimeError("The actor died: ModuleNotFoundError: No module named 'dsnb'"))
    assert 'runtime_env={"pip": ["dsnb"]}' in error.hint


def scenario_a_service_whose_ray_was_shut_down_stops_without_starting_another() -> None:
    import ray

    service = dsnb.start(workers=1, on="ray")
    ray.shutdown()
    service.stop()
    assert not ray.is_initialized()
    start_ray()

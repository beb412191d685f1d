"""What is told of a service adds up at each moment of a pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsnb.dispatcher.statistics import Statistics
from dsnb.dispatcher.status import snapshot
from dsnb.monitor.snapshot import EventStatus, JobStatus, Snapshot, SplitStatus
from dsnb.wire.messages import ClientOrigin, ClientReport, GpuStatus, HostUse, TaskReport, TrainerReport, WorkerReport
from tests.dispatcher.model import SimClient, SimTask, SimWorker
from tests.dispatcher.simulation import CONFIG, Service


def status(service: Service, ledger: Statistics | None = None) -> Snapshot:
    service.core.set_time(service.now)
    return snapshot(
        service.core, ledger or Statistics(), [EventStatus(time=1.0, level="info", text="begun")],
        seq=7, time=2.0, service="name", target="grpc://host:1", started=0.5,
    )  # fmt: skip


def job_of(service: Service, ledger: Statistics | None = None) -> JobStatus:
    job = status(service, ledger).job("train")
    assert job is not None
    return job


def splits_of(service: Service, source: int = 0) -> SplitStatus:
    return job_of(service).splits[source]


def reading(count: int, workers: int = 2, **changes: Any) -> tuple[Service, SimClient, list[tuple[SimWorker, SimTask]]]:
    service = Service()
    there = [service.add_worker(f"w{number}") for number in range(workers)]
    client = service.join(service.register(count, **changes), "train")
    return service, client, [(worker, service.task(worker)) for worker in there]


def test_a_new_service_has_nothing() -> None:
    told = status(Service())
    assert (told.service, told.target, told.seq, told.started) == ("name", "grpc://host:1", 7, 0.5)
    assert (told.workers, told.jobs) == ((), ())
    assert [event.text for event in told.events] == ["begun"]


def test_a_worker_is_told_with_what_it_last_reported() -> None:
    service, ledger = Service(), Statistics()
    worker = service.add_worker("w", "host:7")
    tasks = (TaskReport(task_id="t", head=5, sent_elements=4, sent_bytes=32, window_bytes=8, errors=1, readers=2),)
    ledger.worker_reported(WorkerReport(uid="w", tasks=tasks, capacity_bytes=100, rss_bytes=9))
    service.wait(1.0)
    [told] = status(service, ledger).workers
    assert (told.name, told.address, told.state, told.heartbeat_age_s) == ("w0", "host:7", "running", 1.0)
    assert (told.produced, told.sent_elements, told.sent_bytes, told.errors, told.readers) == (5, 4, 32, 1, 2)
    assert (told.cache_bytes, told.capacity_bytes, told.rss_bytes) == (8, 100, 9)
    service.drain(worker)
    assert status(service, ledger).workers[0].state == "draining"


def test_a_host_is_told_once_with_what_its_workers_last_reported() -> None:
    service, ledger = Service(), Statistics()
    gpu = GpuStatus(name="H100", busy_percent=87, memory_used_bytes=40, memory_total_bytes=80)
    use = HostUse(memory_used_bytes=3, memory_total_bytes=9, gpus=(gpu,))
    for uid, host, told in (("a", "one", use), ("b", "one", use), ("c", "two", HostUse()), ("old", "three", None)):
        service.add_worker(uid, f"{host}:7")
        ledger.worker_reported(WorkerReport(uid=uid, host=host, host_id=f"id-{host}", host_use=told))
    one, two = status(service, ledger).hosts
    assert (one.name, one.host_id, one.memory_used_bytes, one.memory_total_bytes) == ("one", "id-one", 3, 9)
    assert one.gpus == (gpu,)
    assert (two.name, two.memory_total_bytes, two.gpus) == ("two", 0, ())


def test_a_job_is_running_idle_or_finished() -> None:
    service, client, [(worker, task)] = reading(4, workers=1)
    assert (job_of(service).state, job_of(service).clients) == ("running", 1)
    service.close(client)
    assert job_of(service).state == "idle"
    service.join(client.joined.dataset_id, "train")
    service.finish(worker, task)
    assert job_of(service).state == "finished"


def test_splits_are_done_in_hand_or_yet_to_give() -> None:
    service, _, [(worker, task), _] = reading(20)
    for _ in range(3):
        service.ask(task, want=3)
    service.consume(task, 4)
    service.report(worker)
    told = splits_of(service)
    assert (told.total, told.done, told.in_hand, told.lost) == (20, 4, 5, 0)


def test_lost_splits_are_not_done() -> None:
    service, client, [(lost, part), (alive, task)] = reading(20, inexact_reason="it draws at random")
    service.ask(part, want=3)
    service.consume(part, 1)
    service.stop(lost)
    service.hear(client)
    told = splits_of(service)
    assert (told.done, told.in_hand, told.lost) == (1, 0, 2)
    service.finish(alive, task)
    told = splits_of(service)
    assert (told.done, told.in_hand, told.lost) == (18, 0, 2)
    assert job_of(service).lost_splits == 2


def test_splits_that_another_worker_takes_over_are_in_hand() -> None:
    service, client, [(lost, part), (alive, _)] = reading(20)
    service.ask(part, want=3)
    service.consume(part, 1)
    service.stop(lost)
    told = splits_of(service)
    assert (told.done, told.in_hand, told.lost) == (1, 2, 0)
    service.hear(client)
    service.report(alive)
    told = splits_of(service)
    assert (told.done, told.in_hand, told.lost) == (1, 2, 0)


def test_the_last_splits_of_a_pass_stay_counted_while_they_are_worked_on() -> None:
    service, _, [(worker, task), (other, rest)] = reading(20)
    while not service.ask(task).done:
        pass
    told = splits_of(service)
    assert (told.repetition, told.done, told.in_hand) == (0, 0, 20)
    service.consume(task)
    service.report(worker)
    assert (splits_of(service).repetition, splits_of(service).done) == (0, 20)
    task.finish()
    rest.finish()
    service.consume(task)
    service.consume(rest)
    service.report(worker)
    service.report(other)
    assert job_of(service).state == "finished"
    assert (splits_of(service).repetition, splits_of(service).done) == (0, 20)


def test_a_new_repetition_is_told_when_somebody_was_given_a_part_of_it() -> None:
    service, _, [(worker, task)] = reading(20, workers=1)
    while not service.ask(task).done:
        pass
    service.consume(task)
    service.report(worker)
    service.ask(task, want=2)
    told = splits_of(service)
    assert (told.repetition, told.done, told.in_hand) == (1, 0, 2)


def test_the_newest_pass_is_told_and_all_its_losses() -> None:
    service, client, [(lost, part), _] = reading(20, inexact_reason="it draws at random")
    service.ask(part, want=3)
    service.consume(part, 1)
    service.stop(lost)
    service.hear(client)
    service.join(client.joined.dataset_id, "train", iteration=1)
    job = job_of(service)
    assert (job.iteration, job.lost_splits, job.splits[0].lost) == (1, 2, 0)


# ---- trainers


def trainer(name: str, **changes: Any) -> TrainerReport:
    return TrainerReport(trainer_id=name, clients=1, **changes)


def test_a_trainers_place_is_told_task_by_task_with_its_lag() -> None:
    service, ledger = Service(), Statistics()
    service.add_worker("w")
    client = service.join(service.register(20), "train", cached=True, trainer_id="a")
    [task_id] = client.tasks
    ledger.register_task(task_id, "train")
    ledger.client_joined(client.client_id, "train", "a")
    ledger.client_reported(ClientReport(client_id=client.client_id, elements=6, lost=1), "train")
    places = (trainer("a", offset=6, hits=4, misses=2, skipped=1), trainer("b", offset=9, hits=9))
    ledger.worker_reported(
        WorkerReport(uid="w", tasks=(TaskReport(task_id=task_id, head=10, state="running", trainers=places),))
    )
    told = {trainer.trainer_id: trainer for trainer in job_of(service, ledger).trainers}
    assert (told["a"].elements, told["a"].hits, told["a"].misses, told["a"].skipped, told["a"].lost) == (6, 4, 2, 1, 1)
    assert [(place.worker, place.offset, place.lag) for place in told["a"].cursors] == [("w0", 6, 4)]
    assert (told["b"].clients, told["b"].cursors[0].lag) == (0, 1)


def test_without_the_cache_only_a_single_reader_has_a_place_of_its_own() -> None:
    service, ledger = Service(), Statistics()
    service.add_worker("w")
    dataset = service.register(20)
    first = service.join(dataset, "train")
    [task_id] = first.tasks
    ledger.register_task(task_id, "train")
    ledger.client_joined(first.client_id, "train", "")
    ledger.worker_reported(
        WorkerReport(uid="w", tasks=(TaskReport(task_id=task_id, head=10, trainers=(trainer("", offset=3, hits=3),)),))
    )
    [told] = job_of(service, ledger).trainers
    assert [(place.offset, place.lag) for place in told.cursors] == [(3, 7)]
    assert told.hits == 0, "hits are of the cache"
    second = service.join(dataset, "train")
    ledger.client_joined(second.client_id, "train", "")
    assert [trainer.cursors for trainer in job_of(service, ledger).trainers] == [(), ()]


def test_each_shard_is_told_with_what_became_of_it() -> None:
    service = Service(replace(CONFIG, worker_addresses=["a", "b", "c", "d"]))
    for host in "abc":
        service.add_worker(host, f"{host}:5000")
    client = service.join(service.register(9), "train", "DATA")
    service.finish(service.workers["a"], service.task(service.workers["a"]))
    service.stop(service.workers["b"])
    assert [(row.shard, row.state, row.worker) for row in job_of(service).shards] == [
        (0, "ended", "w0"),
        (1, "lost", ""),
        (2, "running", "w2"),
        (3, "never begun", ""),
    ]
    service.hear(client)
    assert [(row.state, row.worker) for row in job_of(service).shards][1] == ("running", "w0")
    for uid in "ac":
        service.finish(service.workers[uid], service.task(service.workers[uid]))
    service.close(client)
    service.tick()
    assert [row.state for row in job_of(service).shards] == ["ended", "ended", "ended", "never begun"]


def test_hosts_of_clients_are_told_only_if_there_are_several() -> None:
    service, ledger = Service(), Statistics()
    service.add_worker("w")
    dataset = service.register(20)
    ledger.worker_reported(WorkerReport(uid="w", host="laptop"))
    for host, told in (("laptop", [""]), ("server", ["laptop", "server"])):
        client = service.join(dataset, "train")
        ledger.client_joined(client.client_id, "train", "")
        origin = ClientOrigin(cell=3, pid=4711, host=host)
        ledger.client_reported(ClientReport(client_id=client.client_id, origin=origin), "train")
        origins = [one.origin for one in job_of(service, ledger).trainers]
        assert [one.host for one in origins if one] == told
    ledger.retain_only({"train"}, set())
    left = sorted(one.origin.host for one in job_of(service, ledger).trainers if one.origin)
    assert left == ["laptop", "server"], "those of clients that left are kept"

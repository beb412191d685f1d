from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from dsnb.dispatcher import events as e
from dsnb.dispatcher.handlers.jobs import MAX_FINISHED_ITERATIONS, had_single_client
from dsnb.dispatcher.handlers.membership import JOBS_KEPT
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError
from dsnb.wire.messages import ClientReport, EndedTask, EndRequest, IterationPosition, JoinRequest
from tests.dispatcher.actors import SimClient
from tests.dispatcher.simulation import CONFIG, Service


def test_clients_of_one_name_share_a_pass_and_its_tasks() -> None:
    service = Service()
    service.add_worker("w")
    dataset = service.register(20)
    first, second = service.join(dataset, "train"), service.join(dataset, "train")
    assert first.tasks == second.tasks
    assert len(first.tasks) == 1


def test_clients_without_a_name_have_passes_of_their_own() -> None:
    service = Service()
    service.add_worker("w")
    dataset = service.register(20)
    first, second = service.join(dataset), service.join(dataset)
    assert first.job != second.job
    assert not first.tasks.keys() & second.tasks.keys()


def test_an_anonymous_client_never_gets_into_a_job_that_somebody_named() -> None:
    service = Service()
    service.add_worker("w")
    dataset = service.register(20)
    number = service.core.next_number("job")
    named = service.join(dataset, f"anonymous-{number + 1}")
    anonymous = service.join(dataset)
    assert anonymous.job != named.job


def test_each_repetition_is_a_pass_of_its_own() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.register(20)
    first, second = service.join(dataset, "train"), service.join(dataset, "train", iteration=1)
    service.finish(worker, service.task(worker, 0))
    assert first.finished
    assert not second.finished


def test_a_client_that_wants_an_unfinished_pass_joins_the_first_one_that_is_not_over() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.register(20)
    for number in range(3):
        service.join(dataset, "train", iteration=number)
        service.finish(worker, service.task(worker))
    assert service.join(dataset, "train", iteration=1).number == 1
    assert service.join(dataset, "train", iteration=1, skip_finished=True).number == 3
    assert service.join(dataset, "train", iteration=0, skip_finished=True).number == 3, "which is not over"
    assert service.join(dataset, "train", iteration=7, skip_finished=True).number == 7


def test_a_pass_is_known_to_be_one_client_s_alone_if_no_other_ever_joined_and_nothing_was_lost() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.register(20)

    def alone(client: SimClient) -> bool:
        return had_single_client(service.core, service.core.state.clients[client.client_id])

    assert alone(service.join(dataset, "one"))
    service.close(service.join(dataset, "two"))
    assert not alone(service.join(dataset, "two"))
    lost = service.join(service.register(21), "lost", mode="OFF")
    service.remove(worker)
    service.hear(lost)
    assert service.core.state.iteration("lost", 0).losses
    assert not alone(lost)


@pytest.mark.parametrize("elements", [0, 3, -1])
def test_who_reads_beside_another_one_that_had_nothing_reads_alone(elements: int) -> None:
    service = Service()
    worker = service.add_worker("w")
    first, second = (service.join(service.register(0), "train") for _ in range(2))
    service.finish(worker, service.task(worker))

    def alone_at_the_end(client: SimClient, elements: int) -> bool:
        ended = tuple(EndedTask(task_id=task, incarnation=1) for task in service.core.state.tasks)
        report = ClientReport(client_id=client.client_id, elements=elements) if elements >= 0 else None
        reply = service.call(EndRequest(client_id=client.client_id, ended=ended, final_report=report))
        assert reply.finished
        return had_single_client(service.core, service.core.state.clients[client.client_id])

    assert not alone_at_the_end(first, elements), "the other one may have had something"
    assert alone_at_the_end(second, 0) is (elements == 0)


def test_a_pass_is_not_over_while_a_reader_may_have_died_that_a_new_dispatcher_has_not_heard_of() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.register(20)
    first, second = (service.join(dataset, "train") for _ in range(2))
    service.exhaust(service.task(worker))
    service.read(second, 4)
    service.restart(absent=lambda one: one is second)
    service.read(first)
    service.report(worker)
    assert not service.see_end(first), "what the other one has may come to this one"
    service.hear(second)
    while service.read(first) or service.read(second):
        service.report(worker)
    service.report(worker)
    assert service.see_end(first)


def test_of_many_passes_of_a_job_the_newest_are_kept_and_that_the_others_are_over() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.register(4)
    for number in range(3 * MAX_FINISHED_ITERATIONS):
        client = service.join(dataset, "train", iteration=number)
        service.finish(worker, service.task(worker))
        service.close(client)
        service.wait(0.25, service.keep_alive)
    job = service.core.state.jobs["train"]
    assert list(job.iterations) == list(range(2 * MAX_FINISHED_ITERATIONS, 3 * MAX_FINISHED_ITERATIONS))
    assert job.archived_iterations.pairs() == ((0, 2 * MAX_FINISHED_ITERATIONS),)
    service.restart()
    again = service.join(dataset, "train", iteration=5)
    assert service.core.state.iteration("train", 5).finished, "it was read, so it is empty"
    service.close(again)
    service.wait(0.25, service.keep_alive)
    assert service.join(dataset, "train", iteration=0, skip_finished=True).number == 3 * MAX_FINISHED_ITERATIONS


@pytest.mark.slow
def test_a_shared_job_whose_passes_are_archived_goes_on_with_the_next_one() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.register(4)
    cached = {"cached": True, "trainer_id": "a", "mode": "OFF"}
    for _ in range(MAX_FINISHED_ITERATIONS + 2):
        client = service.join(dataset, "train", **cached)
        service.finish(worker, service.task(worker))
        service.see_end(client)
        service.close(client)
        service.wait(0.25, service.keep_alive)
    finish_others(service, dataset, JOBS_KEPT)
    assert service.core.state.jobs["train"].archived
    assert service.join(dataset, "train", **cached).number == MAX_FINISHED_ITERATIONS + 2


def finish_others(service: Service, dataset: str, count: int) -> None:
    """Have other jobs read to their end, and left."""
    (worker,) = service.workers.values()
    for number in range(count):
        client = service.join(dataset, f"other {number}")
        service.finish(worker, service.task(worker))
        service.close(client)
    service.wait(1.0, service.keep_alive)


@pytest.mark.slow
def test_of_many_jobs_that_nobody_reads_the_newest_are_kept_and_that_the_others_are_over() -> None:
    service = Service(replace(CONFIG, job_gc_timeout_ms=600_000))
    worker = service.add_worker("w")
    dataset = service.register(4)
    for number in range(2):
        client = service.join(dataset, "train", iteration=number)
        service.finish(worker, service.task(worker))
        service.close(client)
    half = service.join(dataset, "half read")
    service.ask(service.task(worker))
    finish_others(service, dataset, JOBS_KEPT)
    jobs = service.core.state.jobs
    assert [job.name for job in jobs.values() if job.archived] == ["train"]
    assert not jobs["half read"].archived
    assert half.client_id in service.core.state.clients
    service.restart()
    service.close(service.join(dataset, "train", iteration=1))
    assert service.core.state.iteration("train", 1).finished, "it was read, so it is empty"
    assert service.join(dataset, "train", iteration=2).number == 2
    assert not service.core.state.iteration("train", 2).finished


@pytest.mark.slow
def test_a_position_begins_a_pass_that_is_over_anew_though_nothing_is_kept_of_it() -> None:
    service = Service(replace(CONFIG, job_gc_timeout_ms=600_000))
    worker = service.add_worker("w")
    dataset = service.register(4)
    client = service.join(dataset, "train")
    service.finish(worker, service.task(worker))
    service.close(client)
    finish_others(service, dataset, JOBS_KEPT)
    assert service.core.state.jobs["train"].archived
    again = service.join(dataset, "train", position=IterationPosition())
    assert not again.finished
    assert not service.core.state.jobs["train"].archived_iterations


def test_a_client_learns_how_many_others_read_with_it() -> None:
    service = Service()
    dataset = service.register(20)
    service.join(dataset, "train")
    joined = service.call(
        JoinRequest(
            dataset_id=dataset, job_name="train", mode="DYNAMIC", cached=False, trainer_id="", compression="AUTO",
            target_workers="AUTO", iteration=0,
        )
    )  # fmt: skip
    assert joined.other_clients == 1


def test_a_pass_is_over_when_all_its_tasks_are() -> None:
    service = Service()
    workers = [service.add_worker(f"w{number}") for number in range(3)]
    client = service.join(service.register(20))
    for worker in workers:
        assert not client.finished
        service.finish(worker, service.task(worker))
    assert client.finished


def test_a_client_that_saw_the_end_of_each_task_ends_the_pass_by_its_word() -> None:
    service = Service()
    workers = [service.add_worker(f"w{number}") for number in range(2)]
    client = service.join(service.register(20), mode="OFF")
    for worker in workers:
        service.exhaust(service.task(worker))
    assert len(list(chain.from_iterable(iter(lambda: service.read(client), [])))) == 40
    assert service.see_end(client)
    assert client.finished


def test_a_client_that_knew_of_one_task_only_is_told_that_there_is_more() -> None:
    service = Service()
    service.add_worker("w0")
    client = service.join(service.register(20), mode="OFF")
    service.break_client(client)
    service.add_worker("w1")
    assert not service.see_end(client)


def test_the_end_of_a_task_that_is_not_there_any_more_is_no_error() -> None:
    service = Service()
    worker = service.add_worker("w")
    client = service.join(service.register(20), mode="OFF")
    tasks = tuple(EndedTask(task_id=task_id, incarnation=1) for task_id in client.tasks)
    service.stop(worker)
    assert not service.call(EndRequest(client_id=client.client_id, ended=tasks)).finished


@pytest.mark.parametrize(
    "changes,told",
    [
        ({"mode": "OFF"}, "Existing processing mode: <DYNAMIC>; got <OFF>"),
        ({"cached": True, "trainer_id": "t"}, "Existing cross-trainer cache: <disabled>; got <enabled>"),
        ({"target_workers": "ANY"}, "Existing target workers: <AUTO>; got <ANY>"),
        ({"weight": 2.0}, "Existing weight: <1>; got <2>"),
    ],
)
def test_other_parameters_under_a_jobs_name_are_refused_and_named(changes: dict[str, Any], told: str) -> None:
    service = Service()
    dataset = service.register(20)
    service.join(dataset, "train")
    before = service.core.state.export()
    with pytest.raises(InvalidArgumentError, match="found an existing job with different parameters") as caught:
        service.join(dataset, "train", **changes)
    assert told in caught.value.what
    assert service.core.state.export() == before


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("exists", [False, True])
def test_a_weight_that_no_client_of_dsnb_sends_is_refused_and_changes_nothing(weight: float, exists: bool) -> None:
    service = Service()
    dataset = service.register(20)
    if exists:
        service.join(dataset, "train")
    before = service.core.state.export()
    with pytest.raises(InvalidArgumentError, match="`weight` is"):
        service.join(dataset, "train", weight=weight)
    assert service.core.state.export() == before


def test_all_parameters_that_differ_are_named_at_once() -> None:
    service = Service()
    dataset = service.register(20)
    service.join(dataset, "train")
    with pytest.raises(InvalidArgumentError, match=r"processing mode.*cross-trainer cache.*target workers"):
        service.join(dataset, "train", "OFF", cached=True, trainer_id="t", target_workers="ANY")


def test_another_pipeline_is_named_with_the_other_parameters_that_differ() -> None:
    service = Service()
    service.close(service.join(service.register(20, pipeline="range(20) | map(f)"), "train"))
    other = service.register(21, pipeline="range(20) | map(g)")
    told = r"processing mode: <DYNAMIC>; got <OFF>\. Existing dataset: <1000>; got <1001>: .* is map\(g\)"
    with pytest.raises(InvalidArgumentError, match=told):
        service.join(other, "train", "OFF")


def test_one_pipeline_under_two_ids_is_two_datasets_and_the_refusal_says_so() -> None:
    service = Service()
    one, other = service.register(20, dataset_id="one"), service.register(20, dataset_id="other")
    plain = service.register(20, compression="NONE")
    service.join(one, "train")
    with pytest.raises(InvalidArgumentError, match="got <other>: the same pipeline, registered under two ids"):
        service.join(other, "train")
    with pytest.raises(InvalidArgumentError, match="the same pipeline with compression NONE, before it was AUTO"):
        service.join(plain, "train")


def test_another_compression_matters_where_frames_are_shared_and_nowhere_else() -> None:
    service = Service()
    dataset = service.register(20)
    service.join(dataset, "alone")
    service.join(dataset, "alone", compression="NONE")
    service.join(dataset, "shared", cached=True, trainer_id="t")
    with pytest.raises(InvalidArgumentError, match="existing compression <AUTO>; got <NONE>"):
        service.join(dataset, "shared", cached=True, trainer_id="u", compression="NONE")


def test_another_pipeline_replaces_a_job_that_nobody_reads_with_a_notice() -> None:
    service = Service()
    worker = service.add_worker("w")
    old = service.register(20, pipeline="range(20) | map(f) | batch(2)")
    new = service.register(30, pipeline="range(20) | map(g) | batch(2)")
    service.close(service.join(old, "train"))
    client = service.join(new, "train")
    notices = [told.text for told in service.instructions if isinstance(told, e.Announce) and "replaced" in told.text]
    assert notices == ["job 'train' was replaced: the first operation that differs is map(g), before it was map(f)"]
    assert list(worker.tasks) == list(client.tasks)


@pytest.mark.parametrize(
    "before,after,told",
    [
        ("range(9) | map(f)", "range(9) | map(g)", r"the first operation that differs is map\(g\), before it was map"),
        ("range(9)", "range(9) | map(g)", r"the first operation that differs is map\(g\), before it was the end"),
        ("range(9) | map(f)", "range(9)", "the first operation that differs is the end, before it was map"),
        ("range(9) | map(f)", "range(9) | map(f)", r"a function or value inside range\(9\) \| map\(f\) differs"),
    ],
)
def test_another_pipeline_is_refused_while_somebody_reads_and_the_difference_named(
    before: str, after: str, told: str
) -> None:
    service = Service()
    client = service.join(service.register(9, pipeline=before), "train")
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        service.join(service.register(10, pipeline=after), "train")
    assert "1 client(s) read it" in caught.value.did
    assert client.client_id in service.core.state.clients


def test_a_dataset_that_is_not_there_is_refused() -> None:
    with pytest.raises(NotFoundError, match="Dataset id nowhere not found"):
        Service().join("nowhere")


def test_a_source_that_cannot_be_split_is_refused_in_dynamic_mode_only() -> None:
    service = Service()
    dataset = service.register(unsplittable_reason="from_generator cannot be split")
    with pytest.raises(UnimplementedError, match="from_generator cannot be split"):
        service.join(dataset, mode="DYNAMIC")
    assert not service.core.state.jobs
    service.join(dataset, mode="OFF")


def test_a_job_that_nobody_reads_can_be_forgotten_and_begins_anew() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.register(20)
    client = service.join(dataset, "train")
    service.finish(worker, service.task(worker))
    service.close(client)
    service.forget("train")
    assert not worker.tasks
    assert not service.join(dataset, "train").finished


def test_a_job_with_readers_is_not_forgotten() -> None:
    service = Service()
    service.join(service.register(20), "train")
    with pytest.raises(FailedPreconditionError, match=r"the job 'train' is read by 1 client\(s\)"):
        service.forget("train")


def test_forgetting_a_job_that_there_is_not_names_those_that_there_are() -> None:
    service = Service()
    service.join(service.register(20), "train")
    with pytest.raises(NotFoundError, match="there is no job 'tarin'") as caught:
        service.forget("tarin")
    assert caught.value.hint == "did you mean 'train'? jobs of this service: train"

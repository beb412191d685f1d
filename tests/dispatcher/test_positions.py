"""A pass tells where it is, and another one begins there: with the same splits for each task, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from dsnb.dispatcher import records as r
from dsnb.dispatcher.handlers import positions
from dsnb.dispatcher.split_ranges import MAX_SPLIT_RANGES, SplitRanges
from dsnb.dispatcher.state import entropy_of, replay
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.wire.messages import IterationPosition, ProviderPosition, SplitRange, TaskPosition
from tests.dispatcher.simulation import Service


@pytest.fixture
def service() -> Service:
    made = Service()
    for uid in ("w0", "w1"):
        made.add_worker(uid)
    return made


def told(service: Service, client: Any) -> IterationPosition:
    return positions.iteration_position(service.core, client.client_id)


def tasks_of(service: Service, job: str, number: int = 0) -> list[Any]:
    state = service.core.state
    return [state.tasks[task] for task in state.iteration(job, number).tasks]


def test_a_position_has_all_splits_that_each_task_had(service: Service) -> None:
    client = service.join(service.register(40), "train")
    for worker in service.workers.values():
        for task in worker.tasks.values():
            service.ask(task)
            service.ask(task)
    found = told(service, client)
    runs = sorted((run.first, run.end) for task in found.tasks for run in task.splits)
    assert [first for first, _ in runs[1:]] == [end for _, end in runs[:-1]], "the runs follow each other"
    assert (runs[0][0], runs[-1][1]) == (0, found.providers[0].next)


def test_runs_that_follow_each_other_are_one_and_too_many_are_forgotten() -> None:
    runs = SplitRanges()
    for first in range(0, 30, 3):
        runs.add(0, 0, first, first + 3)
    assert runs.by_provider == {0: [[0, 0, 30]]}
    for repetition in range(1, MAX_SPLIT_RANGES + 1):
        assert not runs.truncated
        runs.add(0, repetition, 0, 1)
    assert runs.truncated
    assert len(runs.by_provider[0]) == MAX_SPLIT_RANGES


HAD = TaskPosition(entropy=5, skip=3, splits=(SplitRange(first=0, end=4), SplitRange(first=8, end=10)))
OTHER = TaskPosition(entropy=6, skip=1, splits=(SplitRange(first=4, end=8),))
POSITION = IterationPosition(tasks=(HAD, OTHER), providers=(ProviderPosition(next=10),))


def resume(service: Service, dataset: str, position: IterationPosition, **changes: Any) -> Any:
    return service.join(dataset, "train", position=position, **changes)


def test_a_resumed_task_goes_on_behind_the_splits_that_it_had(service: Service) -> None:
    resume(service, service.register(20), POSITION)
    first, second = tasks_of(service, "train")
    assert (first.start_position, second.start_position) == (
        TaskPosition(entropy=5, skip=3, splits=(SplitRange(first=0, end=4), SplitRange(first=8, end=10))),
        TaskPosition(entropy=6, skip=1, splits=(SplitRange(first=4, end=8),)),
    )
    assert (first.grants[0].cursor, first.grants[0].end) == (4, 10)
    assert service.core.state.iteration("train", 0).providers[0].next == 10
    assert entropy_of(service.core.state.iteration("train", 0), first) == 5


def test_old_tasks_are_dealt_to_the_workers_that_there_are(service: Service) -> None:
    third = TaskPosition(entropy=7)
    resume(service, service.register(20), IterationPosition(tasks=(HAD, OTHER, third), providers=POSITION.providers))
    assert [task.worker for task in tasks_of(service, "train")] == ["w0", "w1", "w0"]
    service.core.validate()


def test_workers_without_an_old_task_get_a_fresh_one_where_splits_are_handed_out(service: Service) -> None:
    resume(service, service.register(20), IterationPosition(tasks=(HAD,), providers=POSITION.providers))
    assert [task.start_position is None for task in tasks_of(service, "train")] == [False, True]


def test_the_journal_leads_to_the_same_resumed_pass(service: Service) -> None:
    resume(service, service.register(20), POSITION)
    assert replay(service.records).export() == service.core.state.export()


def test_a_position_of_a_resumed_pass_has_what_came_before(service: Service) -> None:
    client = resume(service, service.register(20), POSITION)
    again = told(service, client)
    assert [task.skip for task in again.tasks] == [3, 1]
    assert [[(run.first, run.end) for run in task.splits] for task in again.tasks] == [[(0, 4), (8, 10)], [(4, 8)]]
    assert again.providers == POSITION.providers


def test_a_pass_that_is_read_is_not_begun_elsewhere(service: Service) -> None:
    dataset = service.register(20)
    client = service.join(dataset, "train")
    with pytest.raises(FailedPreconditionError, match="pass 1 of job 'train' is being read by 1 client"):
        resume(service, dataset, POSITION)
    service.close(client)
    resume(service, dataset, POSITION)
    assert [task.start_position is not None for task in tasks_of(service, "train")] == [True, True]


@pytest.mark.parametrize(
    "position",
    [
        IterationPosition(tasks=(HAD,), providers=()),
        IterationPosition(tasks=(HAD,), providers=(ProviderPosition(next=21),)),
        IterationPosition(tasks=(TaskPosition(splits=(SplitRange(first=0, end=21),)),), providers=POSITION.providers),
        IterationPosition(tasks=(TaskPosition(splits=(SplitRange(provider=1, end=1),)),), providers=POSITION.providers),
    ],
    ids=["no provider", "more given than there is", "a run too long", "an unknown provider"],
)
def test_a_position_that_does_not_fit_is_refused(service: Service, position: IterationPosition) -> None:
    with pytest.raises(InvalidArgumentError, match="does not fit the splits"):
        resume(service, service.register(20), position)


def test_a_task_that_begins_anew_has_lost_its_old_splits(service: Service) -> None:
    resume(service, service.register(20), POSITION)
    (first, _) = tasks_of(service, "train")
    replayed = service.core.state
    replayed.apply(r.TaskUnassigned(task_id=first.task_id, worker="w0", reason="was lost"))
    replayed.apply(r.TaskAssigned(task_id=first.task_id, worker="w0"))
    assert (first.start_position, first.all_splits.by_provider, first.grants) == (None, {}, {})

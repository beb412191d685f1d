"""Invariants of the dispatcher's state that hold between any two events."""

from __future__ import annotations

from itertools import pairwise

from dsnb.dispatcher.state import BEGUN, ENDED, Iteration, State


def validate(state: State) -> None:
    """Check all invariants of a state; raises AssertionError if one does not hold."""
    for task in state.tasks.values():
        iteration = state.iteration(task.job, task.iteration)
        assert task.task_id in iteration.tasks, "a task is not in its iteration"
        assert (task.worker in state.workers) != (task.unassignment is not None), "a task is neither at work nor halted"
    for client in [client for client in state.clients.values() if not client.cancelled_by]:
        assert client.client_id in state.iteration(client.job, client.iteration).clients, "a client is not in its place"
    for job in state.jobs.values():
        assert job.dataset_id in state.datasets, "a job's dataset is unknown"
        for iteration in job.iterations.values():
            _validate(state, iteration)
            assert (iteration.rounds is not None) == bool(job.num_consumers), "rounds without consumers, or the reverse"


def _validate(state: State, iteration: Iteration) -> None:
    assert all(task in state.tasks for task in iteration.tasks), "an iteration's task is unknown"
    assert all(client in state.clients for client in iteration.clients), "an iteration's client is unknown"
    assert not iteration.finished or all(state.tasks[t].ended for t in iteration.tasks), "finished, but a task runs"
    workers = [state.tasks[task].worker for task in iteration.tasks if state.tasks[task].unassignment is None]
    assert iteration.allows_several_tasks or len(workers) == len(set(workers)), (
        "a worker has two tasks in one iteration"
    )
    if iteration.shards:
        _validate_shards(state, iteration)
    if iteration.rounds is not None:
        iteration.rounds.validate()
        here = {client for client in iteration.rounds.client_ids if client}
        assert here == set(iteration.clients), "the clients of an iteration are not those of its consumers"
    for number, provider in enumerate(iteration.providers):
        assert 0 <= provider.next <= provider.count, "more splits were given than there are"
        held = [
            (g.first, g.end)
            for t in iteration.tasks
            if (g := state.tasks[t].grants.get(number)) and g.repetition == provider.repetition
        ]
        held.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(held)), "a split was given twice"


def _validate_shards(state: State, iteration: Iteration) -> None:
    tasks = [state.tasks[task] for task in iteration.tasks]
    held = [task.shard for task in tasks]
    assert len(held) == len(set(held)), "two tasks have one shard"
    for task in tasks:
        expected = ENDED if task.ended else BEGUN
        assert iteration.shards[task.shard] == expected, "a shard has another state than its task"

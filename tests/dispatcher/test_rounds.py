"""Coordinated reads under any schedule: the cores of all three roles, with a simulated network between them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dsnb.dispatcher.handlers import positions, rounds
from dsnb.wire.messages import IterationPosition, TaskPosition
from tests.dispatcher.rounds_world import SimConsumer, World

ANY = st.integers(0, 11)


class RoundsMachine(RuleBasedStateMachine):
    """Messages in any order, and workers, consumers and dispatchers that come and go; then rounds go on."""

    @initialize(
        consumers=st.integers(1, 4),
        workers=st.integers(1, 3),
        at_end=st.sampled_from(["", "drop", "pad", "repeat"]),
        credit=st.sampled_from([3, 64]),
        pace=st.sampled_from([1, 4]),
    )
    def begin(self, consumers: int, workers: int, at_end: str, credit: int, pace: int) -> None:
        self.world = World(consumers, at_end, credit, pace)
        for _ in range(workers):
            self.world.add_worker()
        for index in range(consumers):
            self.world.join(index)

    def consumer(self, at: int) -> SimConsumer | None:
        found = list(self.world.consumers.values())
        return found[at % len(found)] if found else None

    @rule(times=st.integers(1, 8))
    def everything_moves(self, times: int) -> None:
        for _ in range(times):
            self.world.everything_moves()

    @rule(at=ANY, times=st.integers(1, 5))
    def one_consumer_moves(self, at: int, times: int) -> None:
        consumer = self.consumer(at)
        for _ in range(times if consumer is not None else 0):
            assert consumer is not None
            self.world.hear(consumer)
            for task in list(consumer.links):
                self.world.move(consumer, task)
                self.world.produce(task)
            self.world.take(consumer)

    @rule(at=ANY)
    def one_reports(self, at: int) -> None:
        consumer = self.consumer(at)
        if consumer is not None:
            self.world.report(consumer)
            self.world.tell_dispatcher(consumer)

    @rule(at=ANY)
    def one_hears(self, at: int) -> None:
        consumer = self.consumer(at)
        if consumer is not None:
            self.world.hear(consumer)

    @rule()
    def a_worker_comes(self) -> None:
        if len(self.world.workers) < 4:
            self.world.add_worker()

    @rule(at=ANY)
    def a_worker_is_killed(self, at: int) -> None:
        if self.world.workers:
            self.world.kill_worker(at)

    @rule(at=ANY)
    def a_worker_drains(self, at: int) -> None:
        if self.world.workers:
            self.world.drain_worker(at)

    @rule(at=ANY)
    def a_consumer_leaves(self, at: int) -> None:
        self.world.leave(at % self.world.count)

    @rule(at=ANY)
    def a_consumer_comes(self, at: int) -> None:
        self.world.join(at % self.world.count)

    @rule(consumers=st.integers(1, 4), at=st.integers(0, 3))
    def the_job_is_cancelled(self, consumers: int, at: int) -> None:
        """Its name is free for any number of consumers; now and then, for most schedules should get somewhere."""
        if at == 0 and self.world.consumers:
            self.world.cancel()
            self.world.count = consumers
            for index in range(consumers):
                self.world.join(index)

    @rule()
    def the_dispatcher_dies(self) -> None:
        self.world.restart()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.come_to_rest()


def run_schedules(count: int, steps: int) -> None:
    machine: Any = RoundsMachine
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        ),
    )  # fmt: skip


@pytest.mark.slow
def test_rounds_are_whole_and_in_one_order_under_any_schedule() -> None:
    run_schedules(120, 25)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_rounds_are_whole_under_thousands_of_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    run_schedules(2_000, 25)
    taken = time.process_time() - began
    with capsys.disabled():
        print(f"\n2,000 schedules of coordinated reads in {taken:.0f} s of CPU")  # noqa: T201
    assert taken < 60


def test_rounds_go_on_undisturbed() -> None:
    world = World(3)
    world.add_worker()
    world.add_worker()
    for index in range(3):
        world.join(index)
    for _ in range(60):
        world.everything_moves()
    took = [{number: turn for number, (*turn, _) in one.took.items()} for one in world.consumers.values()]
    assert len(took[0]) > 20
    shared = min(map(len, took))
    assert all(
        [turns[number] for number in range(shared)] == [took[0][number] for number in range(shared)] for turns in took
    )
    assert [consumer.rounds.missed for consumer in world.consumers.values()] == [0, 0, 0]


@pytest.mark.parametrize("at_end", ["drop", "pad", "repeat"])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("consumers", [1, 2, 3, 5])
def test_all_consumers_take_the_same_number_of_rounds_of_data_that_end(
    at_end: str, workers: int, consumers: int
) -> None:
    world = World(consumers, at_end)
    for _ in range(workers):
        world.add_worker()
    for index in range(consumers):
        world.join(index)
    before = list(world.consumers.values())
    world.come_to_rest()
    (rounds,) = {len(consumer.took) for consumer in before}
    tasks = {task for consumer in before for task, *_ in consumer.took.values()}
    lengths = [world.length(str(4000 + number)) or 0 for number in range(workers)]
    whole, rest = divmod(sum(lengths), consumers)
    assert rounds == whole + (rest > 0 and at_end != "drop")
    elements = {item[::2] for consumer in before for item in consumer.took.values()}
    assert len(elements) == (sum(lengths) if at_end != "drop" else whole * consumers)
    assert tasks <= {str(4000 + number) for number in range(workers)}


@pytest.mark.parametrize("at", range(2, 20, 3))
@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_that_dies_after_the_last_rounds_were_planned_holds_up_no_consumer(at: int, killed: int) -> None:
    """All consumers hold left-over elements of both workers, and have yet to take whole rounds of the other one."""
    world = World(3, "pad", credit=64, pace=10)
    world.lengths = {"4000": 32, "4001": 32}
    for _ in range(2):
        world.add_worker()
    for index in range(3):
        world.join(index)
    consumers = list(world.consumers.values())
    while min(consumer.rounds.next_round for consumer in consumers) < at:
        world.everything_moves()
    world.kill_worker(killed)
    world.pace = 1
    for _ in range(200):
        world.everything_moves()
    assert [consumer.rounds.ended for consumer in consumers] == [True] * 3
    assert len({len(consumer.took) for consumer in consumers}) == 1
    assert [consumer.rounds.missed for consumer in consumers] == [0] * 3


def test_a_position_keeps_what_a_pass_was_read_of_though_all_its_workers_are_gone() -> None:
    """One without any task would be the beginning, and what was read would come again."""
    world = World(3, "drop")
    world.lengths = {"4000": 12}
    world.add_worker()
    for index in range(3):
        world.join(index)
    consumers = list(world.consumers.values())
    while not all(consumer.rounds.ended for consumer in consumers):
        world.everything_moves()
    world.kill_worker(0)
    for _ in range(10):
        world.everything_moves()
    assert world.position(consumers[0], 4) == {"4000": 12}
    world.check_positions()


def test_a_position_after_a_round_of_leftovers_lies_behind_one_that_was_dropped() -> None:
    """Its elements do not come, and those of the next round, of the same task, have come."""
    world = World(3, "drop")
    world.lengths = dict.fromkeys(("4000", "4001", "4002"), 2)
    for _ in world.lengths:
        world.add_worker()
    for index in range(3):
        world.join(index)
    consumers = list(world.consumers.values())
    while world.core.state.iteration("job", 0).rounds.leftovers is None:  # type: ignore[union-attr]
        world.everything_moves()
    world.kill_worker(0)  # it has the first two elements of the first round, and the second worker the third
    for _ in range(40):
        world.everything_moves()
    assert [(consumer.rounds.dropped, len(consumer.took)) for consumer in consumers] == [(1, 1)] * 3
    assert consumers[0].rounds.taken.elements_after(1) == {"4001": 2, "4002": 2}
    world.check_positions()


def test_there_may_have_been_errors_in_a_task_whose_worker_has_not_reported() -> None:
    """Only workers know of the errors that other consumers got. If there were some, skipping takes longer."""
    world = World(2)
    for _ in range(2):
        world.add_worker()
    for index in range(2):
        world.join(index)
    client = world.consumers[0].client

    def suspected(*silent: str) -> list[str]:
        answer = positions.iteration_position(world.core, client, silent)
        return [task.task_id for task in (*answer.tasks, *answer.gone_tasks) if task.skipped_errors]

    assert positions.workers_to_ask(world.core, client) == {"w1", "w2"}
    assert suspected() == ["4000", "4001"], "neither has reported"
    world.worker_reports("w1")
    assert suspected() == ["4001"]
    world.worker_reports("w2")
    assert suspected() == []
    assert suspected("w1") == ["4000"]
    for _ in range(10):
        world.everything_moves()
    world.kill_worker(0)
    assert suspected() == ["4000"], "there may have been one since its last report"


SAVED = IterationPosition(
    tasks=tuple(TaskPosition(entropy=number, skip=6) for number in (70, 80)), entropy=60, rounds=4
)


def where_tasks_begin(world: World) -> list[tuple[int, int]]:
    answer = positions.iteration_position(world.core, world.consumers[0].client)
    return sorted((task.entropy, task.skip) for task in answer.tasks)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_worker_that_leaves_before_all_consumers_came_takes_no_part_of_a_resumed_pass_with_it(others: int) -> None:
    world = World(2)
    for _ in range(1 + others):
        world.add_worker()
    world.join(0, SAVED)
    world.everything_moves()
    world.kill_worker(0)
    assert where_tasks_begin(world) == [(70, 6), (80, 6)]
    if not others:
        assert not world.core.state.tasks
        world.restart()
        world.add_worker()
    assert where_tasks_begin(world) == [(70, 6), (80, 6)]
    assert len(world.core.state.tasks) == 2
    assert not world.core.state.iteration("job", 0).losses
    world.join(1, SAVED)
    for _ in range(30):
        world.everything_moves()
    assert [len(consumer.took) > 8 for consumer in world.consumers.values()] == [True] * 2
    assert {task for task, *_ in world.consumers[1].took.values()} == {*world.core.state.tasks}


def test_a_worker_that_drains_before_all_consumers_came_hands_its_part_over_if_there_is_another() -> None:
    """Of endless data it would take its part with it."""
    world = World(2)
    for _ in range(2):
        world.add_worker()
    world.join(0, SAVED)
    world.drain_worker(0)
    assert [task.worker for task in world.core.state.tasks.values()] == ["w2"] * 2
    assert where_tasks_begin(world) == [(70, 6), (80, 6)]
    world.drain_worker(1)
    assert [task.worker for task in world.core.state.tasks.values()] == ["w2"] * 2
    world.add_worker()
    world.join(1, SAVED)
    for _ in range(30):
        world.everything_moves()
    assert [len(consumer.took) > 8 for consumer in world.consumers.values()] == [True] * 2
    assert not world.core.state.iteration("job", 0).losses


def test_no_round_is_planned_while_a_part_waits_for_a_worker() -> None:
    """The only other worker drains, and gives nothing but what it has."""
    world = World(2)
    for _ in range(2):
        world.add_worker()
    for index in range(2):
        world.join(index, SAVED)
    world.drain_worker(1)
    world.kill_worker(0)
    for _ in range(10):
        world.everything_moves()
    assert not world.core.state.iteration("job", 0).rounds.schedules  # type: ignore[union-attr]
    job = world.core.state.jobs["job"]
    assert "a worker" in rounds.waits_for(world.core, job, job.iterations[0])
    world.add_worker()
    for _ in range(30):
        world.everything_moves()
    assert [len(consumer.took) > 8 for consumer in world.consumers.values()] == [True] * 2


def world_whose_third_consumer_has_ended() -> World:
    """The first two of three consumers have yet to take the last round."""
    world = World(3, "drop")
    world.add_worker()
    for index in range(3):
        world.join(index)
    consumers = list(world.consumers.values())
    while not consumers[2].rounds.ended:
        world.everything_moves()
    assert not consumers[0].rounds.ended
    assert not consumers[1].rounds.ended
    return world


def test_a_consumer_that_died_in_a_pass_and_reads_the_next_one_holds_up_no_consumer() -> None:
    world = world_whose_third_consumer_has_ended()
    world.join(0)  # dies, and comes again
    world.report(world.consumers[2])
    world.tell_dispatcher(world.consumers[2])
    world.join(0)  # dies before it has begun, and comes for the next pass, for one consumer has ended this one
    assert [consumer.iteration for consumer in world.consumers.values()] == [1, 0, 0]
    for _ in range(20):
        world.everything_moves()
    assert [world.consumers[index].rounds.ended for index in (1, 2)] == [True] * 2
    world.come_to_rest()


def test_a_consumer_that_left_a_pass_that_another_has_ended_holds_up_no_consumer() -> None:
    """A new consumer waits for an agreement, and one without a client comes for the next pass only."""
    world = world_whose_third_consumer_has_ended()
    world.leave(1)
    world.join(0)
    world.leave(2)
    for _ in range(20):
        world.everything_moves()
    assert world.consumers[0].rounds.ended
    world.come_to_rest()


def test_a_consumer_may_get_rounds_again_if_it_comes_again_after_the_dispatcher_died() -> None:
    """Neither the dispatcher nor the worker knows what it took, so the simulated world must not demand otherwise."""
    world = World(1, "drop")
    world.add_worker()
    world.join(0)
    while len(world.consumers[0].took) < 3:
        world.everything_moves()
    world.leave(0)
    world.restart()
    world.come_to_rest()

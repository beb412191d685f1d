"""A task with a real producer and real readers, without servers around it: what the original's C++ tests test."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Self

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import BuildContext
from dsnb.transfer.protocol import FrameSlice, ReadHandle, Sink
from dsnb.wire.messages import ReadRequest, TaskOrder
from dsnb.worker.task import Task

END = object()
"""What a reader gets at the end of the data."""


class TaskReader(Sink):
    """One client of a task that asks for one element at a time."""

    def __init__(self, task: Task, client: str, trainer: str) -> None:
        self._changed = threading.Condition()
        self._came: deque[Any] = deque()
        self._over: Any = None
        self._asked = 0
        self._reading: ReadHandle = task.open(
            ReadRequest(task_id=task.order.task_id, client_id=client, trainer_id=trainer, max_bytes=1 << 20), self
        )

    def get(self, timeout: float = 10.0) -> Any:
        """The next element, or `END`; waits for it.

        Raises:
            Exception: the error in an element's place, or why the task was stopped.
            TimeoutError: nothing came.
        """
        self._asked += 1
        self._reading.credit(self._asked, self._asked - 1, 1 << 20)
        with self._changed:
            if not self._changed.wait_for(lambda: self._came or self._over is not None, timeout):
                raise TimeoutError(f"no element within {timeout:g} s")
            if self._came:
                (element,) = self._came.popleft().elements()
                return element
            if isinstance(self._over, Exception):
                raise self._over
            return END

    def rest(self) -> Iterator[Any]:
        """The elements up to the end."""
        while (element := self.get()) is not END:
            yield element

    def leave(self) -> None:
        self._reading.leave(self._asked)

    # ---- the sink

    def deliver(self, piece: FrameSlice) -> None:
        assert piece.count == 1, "no more than was asked for"
        with self._changed:
            self._came.append(piece)
            self._changed.notify_all()

    def end(self) -> None:
        self._finish(END)

    def progress(self, whole: int, base: int) -> None:
        raise AssertionError("only consumers of coordinated reads are told of whole turns")

    def fail(self, error: Exception) -> None:
        self._finish(error)

    def recalled(self, granted: int) -> None:
        raise AssertionError(granted)

    def _finish(self, over: Any) -> None:
        with self._changed:
            self._over = over
            self._changed.notify_all()


class TaskBench:
    """A task that runs a dataset.

    Args:
        dataset: What it produces.
        cached: Whether its readers share through the cross-trainer cache.
        capacity: The cache's bytes.
        ahead: Bytes to produce ahead of demand.

    Example:
        >>> with TaskBench(Dataset.range(1)) as bench:
        ...     reader = bench.reader()
        ...     [int(reader.get()), reader.get() is END]
        [0, True]
    """

    def __init__(
        self, dataset: Dataset, *, cached: bool = False, capacity: int = 1 << 30, ahead: int = 16 << 20
    ) -> None:
        self.ended: list[str] = []
        self._clients = 0
        self.task = Task(
            TaskOrder(task_id="4000", job_name="job", incarnation=1, mode="OFF", cached=cached),
            lambda _room: dataset.operation.build(BuildContext(entropy=1, low_latency=True)),
            None,
            read_ahead_bytes=ahead,
            capacity=capacity,
            on_change=lambda: None,
            on_end=lambda: self.ended.append("4000"),
            error_context="on a bench",
        )
        self.task.close_to_new_trainers([])  # what a dispatcher answers when the first elements have to go

    def reader(self, trainer: str = "") -> TaskReader:
        """One more client."""
        self._clients += 1
        return TaskReader(self.task, f"client {self._clients}", trainer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.task.stop(AssertionError("the bench is closed"))
        assert self.task.join(10.0)


def numbers(elements: Sequence[Any] | Iterator[Any]) -> list[int]:
    return [int(element) for element in elements]

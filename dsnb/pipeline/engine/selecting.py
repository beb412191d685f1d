"""Takes each element from one of several datasets; shared by `choose_from_datasets` and `sample_from_datasets`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from dsnb.errors import is_element_error
from dsnb.pipeline.engine.stage import Run, Stage, as_list


class SelectStage(Stage):
    """Draws dataset numbers, and takes the next element of each drawn dataset.

    A pull from a dataset requests as many elements as the next draws need, so that the order never depends on run
    lengths. A draw is used up even if it meets the end of its dataset or an error.

    Args:
        name: The operation's name.
        inputs: All inputs of the stage: the datasets, and possibly others.
        sources: The datasets.
        stop_on_empty: Whether everything ends with the first dataset that ends; otherwise later draws of it are
            skipped.
    """

    def __init__(self, name: str, inputs: Sequence[Stage], sources: Sequence[Stage], *, stop_on_empty: bool) -> None:
        super().__init__(name, *inputs)
        self._sources = sources
        self._stop_on_empty = stop_on_empty
        self._draws: deque[Any] = deque()
        self._held: list[deque[Any]] = [deque() for _ in sources]
        self._interrupted: list[Any] = []
        self.active = set(range(len(sources)))

    def draw(self, want: int) -> Sequence[Any]:
        """Return at least one and at most `want` further draws; none at their end."""
        raise NotImplementedError

    def dataset_index(self, draw: Any) -> int:
        """Return the number of the dataset that a draw selects now.

        Raises:
            InvalidArgumentError: it selects none.
        """
        raise NotImplementedError

    def produce(self, want: int) -> Run:
        out, self._interrupted = self._interrupted, []
        try:
            while not out and self.active:
                if not self._draws:
                    self._draws.extend(self.draw(want))
                if not self._draws:
                    break
                self._take_drawn(out, want)
        except Exception as failure:  # noqa: BLE001 - elements before an error are delivered first
            return self.fail_after(failure, out)
        except BaseException:
            self._interrupted = out
            raise
        return out

    def _take_drawn(self, out: list[Any], want: int) -> None:
        while self._draws and self.active and len(out) < want:
            index = self._next_dataset_index()
            held = self._held[index]
            if not held and index in self.active:
                held.extend(self._pull(index, want - len(out)))
            self._draws.popleft()
            if held:
                out.append(held.popleft())
            elif index in self.active:
                self._end_dataset(index)

    def _next_dataset_index(self) -> int:
        try:
            return self.dataset_index(self._draws[0])
        except Exception:
            self._draws.popleft()
            raise

    def _pull(self, index: int, want: int) -> list[Any]:
        ahead = islice(self._draws, 1, want)
        try:
            return as_list(self._sources[index].pull(1 + sum(self._selects(draw, index) for draw in ahead)))
        except Exception as error:
            if is_element_error(error):
                self._draws.popleft()
            raise

    def _selects(self, draw: Any, index: int) -> bool:
        try:
            return self.dataset_index(draw) == index
        except Exception:  # noqa: BLE001 - raised when it is this draw's turn
            return False

    def _end_dataset(self, index: int) -> None:
        self.active.discard(index)
        if self._stop_on_empty:
            self.active.clear()

"""A real `torch.utils.data.DataLoader` over a dataset: the one object that all frameworks on torch take as it is.

The loader's classes derive from torch's, so they are made when torch is first needed. `Elements` is the loader's
`dataset`: frameworks that build a loader of their own from it (Accelerate, torchdata) keep the reading position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from dsnb.errors import FailedPreconditionError
from dsnb.frameworks.leaves import load_framework


def make_loader(new_epoch: Callable[[], Any], length: Callable[[], int], *, sized: bool) -> Any:
    """Return a loader whose elements are batches.

    Args:
        new_epoch: Starts an epoch: returns an iterator with a reading position. Its arguments are checked here.
        length: Returns the number of batches, or raises a TypeError.
        sized: Whether it is known. Only then its dataset has a `__len__`, whose mere presence Keras and Hugging Face
            take as a promise.

    Raises:
        FailedPreconditionError: torch, or what `new_epoch` asks for, is not available here.
        InvalidArgumentError: torch does not know the device.
    """
    new_epoch()  # reads nothing and joins no job
    elements_class = _sized_elements_class() if sized else _elements_class()
    return _loader_class()(elements_class(_Epochs(new_epoch), length))


class _Epochs:
    """The epochs of a loader, one after the other, and the reading position in the present one."""

    def __init__(self, new_epoch: Callable[[], Any]) -> None:
        self._new_epoch = new_epoch
        self._current: Any = None
        self._pending: Any = None
        """The iterator at a loaded position, or one whose state was asked for before the first loop."""

    def __iter__(self) -> Iterator[Any]:
        iterator, self._pending = self._pending, None
        if iterator is None or iterator.closed:
            iterator = self._new_epoch()
        self._current = iterator
        return iterator  # type: ignore[no-any-return]  # an ElementIterator

    def state_dict(self) -> dict[str, Any]:
        """Return the reading position of the last loop, or of the next one if a position was loaded for it."""
        if self._pending is None and self._current is None:
            self._pending = self._new_epoch()
        found: dict[str, Any] = (self._pending or self._current).state_dict()
        return found

    def load_state_dict(self, state: Any) -> None:
        """Let the next loop continue at a position; at the next epoch, if the position is the end of one.

        This ends the loop that is being read: a service lets nobody continue in an epoch that still has a reader.
        """
        iterator = self._new_epoch()
        iterator.load_state_dict(state)
        if self._current is not None:
            self._current.close()
        self._pending, self._current = iterator, None


@cache
def _elements_class() -> Any:
    """Return the class of a loader's dataset."""
    data = load_framework("torch").utils.data

    class Elements(data.IterableDataset):  # type: ignore[misc,name-defined]  # torch is not there for mypy
        """The elements of a dataset of dsnb, as torch tensors."""

        def __init__(self, epochs: _Epochs, length: Callable[[], int]) -> None:
            self._epochs = epochs
            self.length = length

        def __iter__(self) -> Iterator[Any]:
            if data.get_worker_info() is not None:
                raise _worker_error()
            return iter(self._epochs)

        def __reduce__(self) -> Any:
            raise _worker_error()

        def state_dict(self) -> dict[str, Any]:
            return self._epochs.state_dict()

        def load_state_dict(self, state: Any) -> None:
            self._epochs.load_state_dict(state)

    Elements.__module__, Elements.__qualname__ = "dsnb", "to_torch.Elements"
    return Elements


@cache
def _sized_elements_class() -> Any:
    class SizedElements(_elements_class()):  # type: ignore[misc]  # made at run time
        def __len__(self) -> int:
            length: int = self.length()
            return length

    SizedElements.__module__, SizedElements.__qualname__ = "dsnb", "to_torch.SizedElements"
    return SizedElements


def _worker_error() -> FailedPreconditionError:
    return FailedPreconditionError(
        "a DataLoader with workers of its own reads a dataset of dsnb, and each of them would read all of it",
        did="nothing was read",
        hint="leave num_workers at 0: the service's workers, or `map` and `prefetch`, work in parallel already",
    )


@cache
def _loader_class() -> Any:
    data = load_framework("torch").utils.data

    class Loader(data.DataLoader):  # type: ignore[misc,name-defined]  # as above
        """A DataLoader whose elements are the batches of a dataset of dsnb."""

        def __init__(self, elements: Any) -> None:
            super().__init__(elements, batch_size=None, num_workers=0, collate_fn=_unchanged)

        def __iter__(self) -> Iterator[Any]:
            return iter(self.dataset)  # without the bookkeeping of torch's own iterator, which serves its workers

        def __len__(self) -> int:
            length: int = self.dataset.length()
            return length

        def __reduce__(self) -> Any:
            raise _worker_error()

        def state_dict(self) -> dict[str, Any]:
            """Return the reading position, for `load_state_dict`; see `Dataset.to_torch`."""
            found: dict[str, Any] = self.dataset.state_dict()
            return found

        def load_state_dict(self, state: Any) -> None:
            """Let the next loop continue at a position that `state_dict` returned, here or in another process."""
            self.dataset.load_state_dict(state)

    Loader.__module__, Loader.__qualname__ = "dsnb", "to_torch.Loader"
    return Loader


def _unchanged(batch: Any) -> Any:
    return batch

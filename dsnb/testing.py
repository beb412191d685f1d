"""Checks that users run on their own pipelines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np

from dsnb.arguments import checked, each, integer, optional
from dsnb.client.distribute import distribute
from dsnb.client.options import ShardingPolicy, service_address, sharding_policy
from dsnb.client.source import FromService
from dsnb.elements.structure import flatten, structure_of
from dsnb.errors import InvalidArgumentError, is_element_error
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.iterator import ElementIterator
from dsnb.pipeline.operation import Operation, walk
from dsnb.pipeline.validate import dataset as dataset_rule

__all__ = ("assert_resumable",)

Outcome = tuple[Any, ...]
"""A comparable, hashable form of an element (its structure and leaves) or an error (its class and text)."""


@checked(
    dataset=dataset_rule,
    service=optional(service_address),
    processing_mode=sharding_policy,
    positions=optional(each(integer(0), "pass a list of positions, 0 or more")),
    most=integer(1),
)
def assert_resumable(
    dataset: Dataset,
    *,
    service: Any = None,
    processing_mode: Any = "parallel_epochs",
    positions: Iterable[int] | None = None,
    most: int = 1000,
) -> None:
    """Check that a pipeline resumes from each reading position as if it had not stopped, also when stopped twice.

    Each position is converted to JSON and back, as in a checkpoint. A local pipeline must give identical elements in
    the same order. If a service with several workers runs the pipeline, the elements before and after a position
    together must be those of one epoch, each as often; if operations follow that combine elements, such as `batch`,
    their rows are counted instead.

    Args:
        dataset: The dataset to check. Apart from what a position records, two epochs of it must be equal.
        service: A `DataService` or an address: the dataset is distributed there and checked through it.
        processing_mode: The processing mode for the service, as for `distribute`.
        positions: Numbers of elements after which to stop; None for every position.
        most: Most elements to read of an endless or long pipeline. A distributed one must end before.

    Raises:
        AssertionError: with the first position and the first element that differ.
        FailedPreconditionError: with the operation that has no reading position.

    Example:
        >>> import dsnb
        >>> assert_resumable(dsnb.Dataset.range(20).shuffle(5).batch(3))
    """
    if service is not None:
        dataset = dataset.apply(distribute(processing_mode, service))
    check = _check_for(dataset.operation)
    with iter(dataset) as elements:
        known, states = _read_with_states(elements, most)
    if len(known) == most and check is not _in_order:
        raise InvalidArgumentError(
            f"`most`: the pipeline has {most:,} elements or more, and those of a service are compared as a whole",
            hint="check `dataset.take(n)`, or raise `most`",
        )
    for at in range(len(states)) if positions is None else positions:
        if at < len(states):
            _check_position(dataset, known, at, states[at], check, ends=len(known) < most)


def _check_position(dataset: Dataset, known: list[Outcome], at: int, state: Any, check: _Check, *, ends: bool) -> None:
    left = len(known) - min(at, len(known)) + ends  # one more at an end, to check that no further element comes
    with iter(dataset) as elements:
        elements.load_state_dict(state)
        one = list(_outcomes(elements, min(1, left)))
        again = _through_json(elements.state_dict())
        rest = list(_outcomes(elements, left - len(one)))
    check(_Stop(at, "once"), known, known[:at], one + rest)
    with iter(dataset) as elements:
        elements.load_state_dict(again)
        twice = list(_outcomes(elements, left - len(one)))
    check(_Stop(at, f"again, {len(one)} element behind"), known, known[:at] + one, twice)


class _Stop(msgspec.Struct, frozen=True):
    position: int
    how: str

    def __str__(self) -> str:
        return f"position {self.position} (stopped {self.how})"


_Check = Callable[[_Stop, list[Outcome], list[Outcome], list[Outcome]], None]
"""Compares outcomes. Arguments: the stop, all outcomes, those before the stop, and those after it."""


def _in_order(stop: _Stop, known: list[Outcome], before: list[Outcome], behind: list[Outcome]) -> None:
    for number, (wanted, found) in enumerate(zip_longest(known[len(before) :], behind), start=len(before)):
        assert wanted == found, (
            f"{stop}: element {number} is {_shown(found)} after resuming, and {_shown(wanted)} without"
        )


def _counted(rows: Callable[[Outcome], Iterable[Any]]) -> _Check:
    def holds(stop: _Stop, known: list[Outcome], before: list[Outcome], behind: list[Outcome]) -> None:
        wanted = Counter(row for outcome in known for row in rows(outcome))
        wanted.subtract(row for outcome in before for row in rows(outcome))
        for number, outcome in enumerate(behind, start=len(before)):
            for row in rows(outcome):
                wanted[row] -= 1
                assert wanted[row] >= 0, f"{stop}: element {number}, {_shown(outcome)}, came once too often"
        missing = next((row for row, count in wanted.items() if count), None)
        assert missing is None, f"{stop}: {_shown(missing)} never came after resuming"

    return holds


def _rows(outcome: Outcome) -> Iterator[Any]:
    """Yield the rows of an element if all its leaves are arrays of one length; otherwise the element itself."""
    structure, *leaves = outcome
    lengths = {leaf[2][0] if leaf[0] == "array" and leaf[2] else -1 for leaf in leaves}
    if len(lengths) != 1 or -1 in lengths:
        yield outcome
        return
    arrays = [np.frombuffer(leaf[3], np.dtype(leaf[1])).reshape(leaf[2]) for leaf in leaves]
    for row in zip(*arrays, strict=True):
        yield (structure, *((array.shape, _narrowed(np.asarray(array)).tobytes()) for array in row))


def _check_for(operation: Operation) -> _Check:
    if not any(step.has_source_position for step in walk(operation)):
        return _in_order
    regrouped = any(map(_regroups, walk(operation)))
    return _counted(_rows if regrouped else lambda outcome: [outcome])


def _regroups(step: Operation) -> bool:
    """Whether elements of an operation may combine other elements of its input after resuming."""
    if isinstance(step, FromService):  # which splits a task gets next depends on timing
        known = step.remote_pipeline
        return step.options.mode is ShardingPolicy.DYNAMIC and (known is None or any(map(_regroups, walk(known))))
    return bool(step.inputs) and not step.split_local


def _read_with_states(elements: ElementIterator, most: int) -> tuple[list[Outcome], list[Any]]:
    """Return all outcomes, and the position before each and at the end."""
    outcomes: list[Outcome] = []
    states = [_through_json(elements.state_dict())]
    for outcome in _outcomes(elements, most):
        outcomes.append(outcome)
        states.append(_through_json(elements.state_dict()))
    states.append(_through_json(elements.state_dict()))
    return outcomes, states


def _through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def _outcomes(elements: ElementIterator, most: int) -> Iterator[Outcome]:
    for _ in range(most):
        try:
            element = next(elements)
        except StopIteration:
            return
        except Exception as error:
            if not is_element_error(error):
                raise
            yield "error", (type(error).__name__, str(error))
        else:
            yield str(structure_of(element)), *map(_leaf, flatten(element))


def _leaf(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, Dataset):
        return "dataset", tuple(_outcomes(iter(leaf), 1 << 62))
    if isinstance(leaf, (np.ndarray, np.generic)):
        array = np.asarray(leaf)
        if not array.dtype.hasobject:
            array = _narrowed(array)
            return "array", array.dtype.str, array.shape, array.tobytes()
    return type(leaf).__name__, leaf


def _narrowed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Text in the narrowest dtype: the width of an array of text depends on which elements travel together."""
    if array.dtype.kind not in "US":
        return array
    return array.astype(f"{array.dtype.kind}{np.strings.str_len(array).max(initial=1)}")


def _shown(outcome: Any) -> str:
    if outcome is None:
        return "the end"
    leaves = outcome[1:] if isinstance(outcome, tuple) else (outcome,)
    return ", ".join(map(_shown_leaf, leaves))


def _shown_leaf(leaf: Any) -> str:
    if isinstance(leaf, tuple) and leaf[0] == "array":
        return f"{np.frombuffer(leaf[3], np.dtype(leaf[1])).reshape(leaf[2]).tolist()!r:.80}"
    return f"{leaf!r:.80}"


def __dir__() -> list[str]:
    return sorted(__all__)

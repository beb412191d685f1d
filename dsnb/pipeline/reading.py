"""Methods of `Dataset` that read it and return one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsnb.elements.structure import flatten, rebuild, structure_of
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.engine.iterator import ElementIterator
from dsnb.pipeline.engine.to_numpy import numpy_leaf
from dsnb.pipeline.operation import INFINITE_CARDINALITY, walk
from dsnb.pipeline.position import DatasetIteration, IterationCounter
from dsnb.pipeline.sources.arrays import flatten_input, tensor_of

if TYPE_CHECKING:
    from dsnb.pipeline.dataset import Dataset


def reduced(dataset: Dataset, initial_state: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Return the last state that `function(state, element)` returned, as NumPy.

    Raises:
        InvalidArgumentError: a state cannot be read, or is nested otherwise than the first one.
        FailedPreconditionError: the dataset never ends.
    """
    structure, leaves = flatten_input(initial_state, "initial_state")
    state = rebuild(structure, (tensor_of(leaf, "initial_state") for leaf in leaves))
    if dataset.cardinality() == INFINITE_CARDINALITY:
        raise FailedPreconditionError("`reduce` needs the end of the dataset, which never ends", hint="`take(n)` first")
    with iter(dataset) as elements:
        for element in elements:
            state = function(state, element)
            if structure_of(state) != structure:
                raise InvalidArgumentError(
                    f"`reduce_func` returned a state built as {structure_of(state)}, the first one as {structure}",
                    did="reading has ended",
                    hint="return a state with the same structure for every element",
                )
    return rebuild(structure, map(numpy_leaf, flatten(state)))


def single_element(dataset: Dataset) -> Any:
    """Return the only element.

    Raises:
        InvalidArgumentError: there is none, or more than one.
    """
    with iter(dataset) as elements:
        found = list(zip(range(2), elements, strict=False))
    if len(found) != 1:
        raise InvalidArgumentError(
            f"get_single_element: the dataset has {'more than one element' if found else 'no element'}",
            hint="`take(1)` for the first one" if found else "does a `filter` leave nothing?",
        )
    return found[0][1]


def first_element(dataset: Dataset) -> Any:
    """Return the first element of the next epoch, without beginning that epoch.

    Raises:
        FailedPreconditionError: the dataset is empty, or it is read from a service.
    """
    if any(step.has_source_position for step in walk(dataset.operation)):
        raise FailedPreconditionError(
            "`peek` would take an element from the trainers of a service",
            did="nothing was read",
            hint="peek before `distribute`",
        )
    iteration = DatasetIteration(operation=dataset.operation, counter=IterationCounter())
    with ElementIterator(iteration=iteration) as elements:
        for element in elements:
            return element
    raise FailedPreconditionError(
        "`peek` found no element: the dataset is empty",
        did="the whole dataset was read",
        hint="does a `filter` or a pattern of file names match nothing?",
    )

"""Rules for the arguments of `Dataset`'s methods, in addition to the general ones in `dsnb.arguments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dsnb.arguments import Rule, check_accepts, each, integer, number, optional, short_repr
from dsnb.elements.structure import structure_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.operation import Operation, operation_of, walk
from dsnb.pipeline.sources.elements import Elements
from dsnb.pipeline.specs import are_compatible

AUTOTUNE: Final = -1
"""For `num_parallel_calls` and `buffer_size`: dsnb chooses the value by measuring while the pipeline runs."""

MOST_THREADS: Final = 1024
"""A system may refuse to start more threads; Python's threads compete for the GIL long before that."""


def dataset(name: str, value: Any) -> Any:
    """Check that a value is a dataset."""
    if operation_of(value) is None:
        raise InvalidArgumentError(f"`{name}` is {type(value).__name__}, not a Dataset", hint="pass a dsnb.Dataset")
    return value


def datasets(name: str, value: Any) -> tuple[Any, ...]:
    """Check and return a list of datasets."""
    if operation_of(value) is not None:  # otherwise `each` would iterate its elements
        raise InvalidArgumentError(f"`{name}` is a Dataset, not a list of them", hint="pass a list of datasets")
    found: tuple[Any, ...] = each(dataset, "pass a list of datasets")(name, value)
    return found


seed: Final = optional(integer())
count_or_all: Final = integer(-1, hint="pass a count of 0 or more, or -1 for all")


sampling_weights: Final = each(
    number("pass one number for each dataset: 0 or more, at most 1e100", least=0.0, most=1e100)
)


def _count_or_autotune(most: int) -> Rule:
    """Return a rule that accepts None, AUTOTUNE, or 1 and more."""
    hint = f"pass None, dsnb.AUTOTUNE, or 1 to {most:,}"
    given = integer(1, most, hint)
    return optional(lambda name, value: AUTOTUNE if type(value) is int and value == AUTOTUNE else given(name, value))


parallel_calls: Final = _count_or_autotune(MOST_THREADS)
cycle_length: Final = _count_or_autotune(100_000)


def called_with_elements(name: str, value: Callable[..., Any], source: Operation) -> Callable[..., Any]:
    """Return the function if it can be called with the elements of `source`; a tuple is unpacked into arguments.

    If the element spec is unknown, or finding it would mean examining many elements, nothing is checked before the
    first call.
    """
    spec = None if any(isinstance(step, Elements) for step in walk(source)) else source.element_spec
    if spec is None:
        return value
    structure = structure_of(spec)
    count = len(structure.children) if structure.kind == "tuple" else 1
    parts = f"{count} component{'' if count == 1 else 's'}"
    return check_accepts(name, value, count, f"elements have {parts}")


def operations_of_one_spec(given: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the operations of the argument `datasets`: at least one, with compatible element specs."""
    if not given:
        raise InvalidArgumentError("`datasets` is empty", hint="pass a list of one dataset or more")
    known = [source.element_spec for source in given if source.element_spec is not None]
    for spec in known:
        if not are_compatible(known[0], spec):
            raise InvalidArgumentError(
                f"`datasets` have elements of the specs {known[0]} and {spec}, which cannot be in one dataset",
                hint="give all datasets the same structure, dtypes and numbers of dimensions with `map`",
            )
    return tuple(given)


def weights_or_equal(weights: Sequence[float] | None, count: int) -> list[float]:
    """Return the weights of `count` datasets; None means equal weights."""
    if weights is None:
        return [1.0] * count
    given = list(weights)
    if len(given) != count or not any(given):
        raise InvalidArgumentError(
            f"`weights` is {short_repr(given)} for {count} dataset(s)",
            hint="pass one number for each dataset: 0 or more, and at least one of them above 0",
        )
    return given

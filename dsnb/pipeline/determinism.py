"""Whether a pipeline's elements can be reproduced, and whether two pipelines are the same, for reading positions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from weakref import WeakKeyDictionary

from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.pipeline.engine.source_positions import no_position_error
from dsnb.pipeline.graph import inputs_first
from dsnb.pipeline.operation import Operation, walk
from dsnb.pipeline.operations.cache import Cache
from dsnb.pipeline.operations.with_options import options_of

Identity = list[list[str]]
"""Name and digest of each operation, inputs first; the digest is empty for an operation that cannot be hashed."""


_known: WeakKeyDictionary[Operation, Identity] = WeakKeyDictionary()


def inexact_reason(operation: Operation, *, sources_have_positions: bool = True) -> str:
    """Return why a pipeline may give other elements, or another order, when it runs again; empty if it does not.

    Args:
        operation: The pipeline.
        sources_have_positions: Whether the positions of sources that read from a service are kept where it runs.
    """
    return next(_obstacles(operation, sources_have_positions), "")


def refuse_inexact(operation: Operation) -> None:
    """Refuse a pipeline whose elements cannot be reproduced.

    Raises:
        FailedPreconditionError: the message names the operation.
    """
    obstacle = inexact_reason(operation)
    if obstacle:
        raise no_position_error(obstacle)


def identity(operation: Operation) -> Identity:
    """Return the identity of a pipeline, including the part that a service runs.

    Computed once: hashing everything that functions refer to takes longer than producing an element.
    """
    if operation not in _known:
        _known[operation] = [[_name(step), _digest(step)] for step in _steps(operation)]
    return [[*step] for step in _known[operation]]


def difference(mine: Identity, its: Identity) -> str:
    """Describe the first operation in which two pipelines differ; empty if they are equal."""
    for number, (here, there) in enumerate(zip_longest(mine, its), start=1):
        if here is None or there is None:
            where, extra = ("it", there) if here is None else ("this one", here)
            return f"only {where} has the operation {number}, {extra[0]}"
        if here[0] != there[0]:
            return f"its operation {number} is {there[0]}, and here it is {here[0]}"
        if here[1] != there[1]:
            return f"its operation {number}, {here[0]}, has another function or other values"
    return ""


def _obstacles(operation: Operation, sources_have_positions: bool) -> Iterator[str]:
    ordered = options_of(operation).deterministic is not False
    for step in walk(operation):
        if step.has_source_position:
            if not sources_have_positions:
                yield f"{step.name} inside of a distributed pipeline hands out what is ready first"
        elif not step.repeatable_under(deterministic=ordered):
            yield f"{step.name} hands out what is ready first (deterministic=False)"
        if isinstance(step, Cache):
            yield from _not_replayable(step)


def _not_replayable(cache: Cache) -> Iterator[str]:
    """Yield what cannot be reproduced once a recording in memory is gone, or that depends on the order of a service."""
    for step in walk(cache.inputs[0]):
        if step.has_source_position:
            yield f"{cache.name} keeps what {step.name} handed out, in an order that is not remembered"
        elif cache.where is None and step.draws_without_seed:
            yield (
                f"{step.name} has no seed, and {cache.name} behind it keeps its order in memory only; give it a seed, "
                "or the cache a directory"
            )


def _steps(operation: Operation) -> Iterator[Operation]:
    for step in inputs_first(operation):
        remote = step.remote_pipeline
        if remote is not None:
            yield from _steps(remote)
        yield step


def _name(step: Operation) -> str:
    """Return an operation's name, independent of job and recording location."""
    if step.has_source_position:
        return "the service"
    return "cache" if isinstance(step, Cache) else step.name


def _digest(step: Operation) -> str:
    own = step.position_identity
    value = own if own is not None else [getattr(step, name) for name in step.__struct_fields__ if name != "inputs"]
    found = fingerprint((type(step).__name__, len(step.inputs), value))
    return "" if found.unhashable else found.digest

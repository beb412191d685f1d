"""A dataset as HTML, for a cell: its operations, the spec of its elements, their number, and what of it is recorded.

It reads well without styles and scripts, as on GitHub.
"""

from __future__ import annotations

from html import escape

from dsnb.cache.recordings.catalogue import entries
from dsnb.errors import DsnbError, NotFoundError
from dsnb.pipeline.graph import describe
from dsnb.pipeline.operation import INFINITE_CARDINALITY, Operation, walk
from dsnb.pipeline.operations.cache import Cache
from dsnb.storage.urls import without_password


def dataset_html(operation: Operation) -> str:
    """The table of a dataset whose last operation is given."""
    rows = [
        ("operations", "<br>".join(f"<code>{escape(line)}</code>" for line in operation_lines(operation))),
        ("element", f"<code>{escape(_spec_text(operation))}</code>"),
        ("length", escape(length_text(operation))),
        *(("recorded", escape(recorded_text(step))) for step in walk(operation) if isinstance(step, Cache)),
    ]
    body = "".join(f"<tr><td><b>{name}</b></td><td>{text}</td></tr>" for name, text in rows)
    return f"<p><b>Dataset</b></p><table><tbody>{body}</tbody></table>"


def operation_lines(operation: Operation) -> list[str]:
    """The operations from the source to the last one, a line each; each input of a junction is one line."""
    if not operation.inputs:
        return [operation.name]
    if len(operation.inputs) == 1:
        return [*operation_lines(operation.inputs[0]), operation.name]
    return [*(f"  {describe(source)}" for source in operation.inputs), operation.name]


def length_text(operation: Operation) -> str:
    """The number of elements in words."""
    length = operation.cardinality
    if length == INFINITE_CARDINALITY:
        return "endless"
    return f"{length:,} elements" if length >= 0 else "not known before it is read"


def recorded_text(cache: Cache) -> str:
    """Where a cached dataset is recorded, how much of it, and how large. Servers and remote stores are not asked."""
    if cache.where is None:
        return "in memory, while this process runs"
    place = without_password(cache.where)
    if "://" in cache.where:
        return f"at {place} (`dsnb cache ls` asks there)"
    try:
        found = entries(cache.where, [cache.key()])
    except NotFoundError:
        found = []
    except DsnbError as error:
        return f"in {place}: {error.what}"
    if not found:
        return f"in {place}: nothing yet"
    (newest, *_) = found
    return f"in {place}: {newest.state}, {newest.elements:,} elements, {newest.nbytes / 1e6:,.1f} MB"


def _spec_text(operation: Operation) -> str:
    spec = operation.element_spec
    return "unknown until read" if spec is None else str(spec)

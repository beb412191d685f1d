"""What a recording is of: kept beside it for people, and to tell why another pipeline does not find it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from dsnb.dataclass import dataclass
from dsnb.elements.fingerprint import Component, Fingerprint

_MIN_SIMILARITY = 0.5
"""Pipelines that have less of their parts in common are no versions of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingMetadata:
    """What is recorded.

    Attributes:
        pipeline: It in one line.
        components: What its fingerprint covers.
        files: What is known of each file that it names, by path.
    """

    pipeline: str
    components: tuple[Component, ...]
    files: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_fingerprint(cls, pipeline: str, found: Fingerprint, files: Sequence[tuple[str, str]]) -> RecordingMetadata:
        """From a fingerprint."""
        return cls(pipeline=pipeline, components=found.components, files=tuple(files))

    def to_json(self) -> bytes:
        """For a file."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def parse_metadata(data: bytes) -> RecordingMetadata | None:
    """What `to_json` wrote; None for anything else: an explanation may be missing."""
    try:
        values = json.loads(data)
        return RecordingMetadata(
            pipeline=str(values["pipeline"]),
            components=tuple(Component(**component) for component in values["components"]),
            files=tuple((str(path), str(state)) for path, state in values["files"]),
        )
    except (ValueError, TypeError, KeyError):
        return None


def describe_difference(now: RecordingMetadata, others: Iterable[RecordingMetadata]) -> str:
    """What tells a pipeline from the one that is most like it, in words; empty if none is like it.

    Example:
        >>> difference(now, [before])
        'map(decode), function, global SCALE: 3.0 against 4.0 before'
    """
    nearest = _nearest(now, others)
    return "" if nearest is None else _component_difference(now, nearest) or _file_difference(now, nearest)


_reported: set[tuple[str, str, str]] = set()
"""Values that this process has said to differ: the place, the pipeline, and what the value is of."""


def first_difference(location: str, now: RecordingMetadata, others: Iterable[RecordingMetadata]) -> str:
    """As `difference`; but of a value that differs time and again, as in a search over it, only the first time.

    Args:
        location: Where the pipelines are recorded.
        now: The pipeline.
        others: Those that are recorded.
    """
    nearest = _nearest(now, others)
    if nearest is None:
        return ""
    mine, its = _by_path(now), _by_path(nearest)
    path = _first_differing_path(mine, its)
    if path in mine and path in its and mine[path].detail != its[path].detail:
        if (location, now.pipeline, path) in _reported:
            return ""
        _reported.add((location, now.pipeline, path))
    return describe_difference(now, [nearest])


def _nearest(now: RecordingMetadata, others: Iterable[RecordingMetadata]) -> RecordingMetadata | None:
    nearest = max(others, key=lambda other: _similarity(now, other), default=None)
    return None if nearest is None or _similarity(now, nearest) < _MIN_SIMILARITY else nearest


def _similarity(now: RecordingMetadata, other: RecordingMetadata) -> float:
    """The share of parts that both have."""
    mine, its = _by_path(now), _by_path(other)
    alike = sum(path in its and its[path].digest == part.digest for path, part in mine.items())
    return alike / max(1, len(mine), len(its)) if now.pipeline == other.pipeline else 0.0


def _by_path(about: RecordingMetadata) -> dict[str, Component]:
    # Python's version first: another one changes all code, and is the one thing to say then.
    ordered = sorted(about.components, key=lambda part: part.kind != "python")
    return {part.path: part for part in ordered}


def _first_differing_path(mine: dict[str, Component], its: dict[str, Component]) -> str:
    """The path of the first part that is new, differs or is gone; empty if none is."""
    for path, part in mine.items():
        if path not in its or (part.kind, part.digest) != (its[path].kind, its[path].digest):
            return path
    return next((path for path in its if path not in mine), "")


def _component_difference(now: RecordingMetadata, before: RecordingMetadata) -> str:
    mine, its = _by_path(now), _by_path(before)
    path = _first_differing_path(mine, its)
    if not path:
        return ""
    if path not in its:
        return f"{_readable_path(path, mine)}: {mine[path].detail} is new"
    if path not in mine:
        return f"{_readable_path(path, its)}: {its[path].detail} is gone"
    return f"{_readable_path(path, mine)}: {_value_difference(mine[path], its[path])}"


def _readable_path(path: str, parts: dict[str, Component]) -> str:
    """A path from the nearest operation on, which is called by its name."""
    steps = path.split(" > ")
    for length in range(len(steps), 0, -1):
        part = parts.get(" > ".join(steps[:length]))
        if part is not None and part.kind == "operation":
            return ", ".join([part.detail, *steps[length:]])
    return ", ".join(steps)


def _value_difference(now: Component, before: Component) -> str:
    if now.detail != before.detail:
        return f"{now.detail} against {before.detail} before"
    what = {"function": "what it refers to differs", "code": "its code differs", "array": "its contents differ"}
    return f"{what.get(now.kind, 'it differs')} ({now.detail})"


def _file_difference(now: RecordingMetadata, before: RecordingMetadata) -> str:
    known = dict(before.files)
    changed = [path for path, state in now.files if known.get(path) != state]
    if not changed:
        gone = sorted(known.keys() - dict(now.files).keys())
        return f"the file {gone[0]}{_more(gone)} is gone" if gone else ""
    return f"the file {changed[0]}{_more(changed)} {'changed' if changed[0] in known else 'is new'}"


def _more(paths: list[str]) -> str:
    return f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""

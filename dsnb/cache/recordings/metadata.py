"""Metadata of a recording: shown to people, and used to explain why another pipeline does not find the recording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import msgspec

from dsnb.code.fingerprint.fingerprint import Component, Fingerprint

_MIN_SIMILARITY = 0.5
"""Pipelines with a smaller share of equal parts are not considered versions of each other."""


class RecordingMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A description of the recorded pipeline.

    Attributes:
        pipeline: The pipeline in one line.
        components: The components of its fingerprint.
        files: The path and state of each file that it names.
    """

    pipeline: str
    components: tuple[Component, ...]
    files: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_fingerprint(cls, pipeline: str, found: Fingerprint, files: Sequence[tuple[str, str]]) -> RecordingMetadata:
        """The metadata of a pipeline with this fingerprint."""
        return cls(pipeline=pipeline, components=found.components, files=tuple(files))

    def to_json(self) -> bytes:
        """The metadata as JSON, to be stored with the recording."""
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":")).encode()


def parse_metadata(data: bytes) -> RecordingMetadata | None:
    """Parse what `to_json` wrote; None for anything else, because explanations are optional."""
    try:
        return msgspec.convert(json.loads(data), RecordingMetadata)
    except (ValueError, msgspec.ValidationError):  # no ValueError in older releases
        return None


def describe_difference(now: RecordingMetadata, others: Iterable[RecordingMetadata]) -> str:
    """Describe how a pipeline differs from the most similar other one; empty if none is similar.

    Example:
        >>> describe_difference(now, [before])
        'map(decode), function, global SCALE: 3.0 against 4.0 before'
    """
    nearest = _nearest(now, others)
    return "" if nearest is None else _component_difference(now, nearest) or _file_difference(now, nearest)


_reported: set[tuple[str, str, str]] = set()
"""Differences that this process has described: the location, the pipeline, and the path of the differing value."""


def first_difference(location: str, now: RecordingMetadata, others: Iterable[RecordingMetadata]) -> str:
    """Like `describe_difference`, but a value that differs again and again, as in a search, is described only once.

    Args:
        location: Where the pipelines are recorded.
        now: The pipeline.
        others: The recorded pipelines.
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
    """The share of components that are equal in both; 0 if the one-line descriptions differ."""
    mine, its = _by_path(now), _by_path(other)
    alike = sum(path in its and its[path].digest == part.digest for path, part in mine.items())
    return alike / max(1, len(mine), len(its)) if now.pipeline == other.pipeline else 0.0


def _by_path(about: RecordingMetadata) -> dict[str, Component]:
    # Python's version first: if it differs, all code differs too, and the version is the one reason to name.
    ordered = sorted(about.components, key=lambda part: part.kind != "python")
    return {part.path: part for part in ordered}


def _first_differing_path(mine: dict[str, Component], its: dict[str, Component]) -> str:
    """The path of the first component that is new, differs or is gone; empty if there is none."""
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
    """A path that starts at the nearest operation, with the operation's name."""
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

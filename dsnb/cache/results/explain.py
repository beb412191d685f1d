"""Explains why a call was computed: how its key differs from that of the most similar stored call."""

from __future__ import annotations

import difflib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType

import msgspec
from msgspec.structs import replace

from dsnb.cache.results.key import Key
from dsnb.code.fingerprint.fingerprint import Component
from dsnb.code.source import source_of

_SHOWN_LINES = 3
# A difference in one of these is described by the parts that differ, and by itself only if no part does.
_CONTAINERS = frozenset(
    {"function", "object", "operation", "class", "list", "tuple", "dict", "set", "partial", "wrapper"}
)
_ORDER = {"python": 0, "code": 1, "value": 2, "array": 3}


class CallNote(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored about a call, to be compared with later calls.

    Attributes:
        digest: The digest of its key.
        call: The call as a person would write it.
        parts: The components of its key.
        sources: The source text of the user's functions, by path.
        lost: Why its result was not stored; empty if it was.
    """

    digest: str
    call: str
    parts: tuple[Component, ...]
    sources: Mapping[str, str]
    lost: str = ""

    def to_bytes(self) -> bytes:
        """Encode the note as compressed JSON."""
        return zlib.compress(json.dumps(msgspec.to_builtins(self)).encode(), 1)

    @staticmethod
    def from_bytes(data: bytes) -> CallNote:
        """Decode a note that `to_bytes` encoded."""
        return msgspec.convert(json.loads(zlib.decompress(data)), CallNote)


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a call was computed, or that its result came from the cache.

    Attributes:
        call: The call, as in "train(lr=0.1)".
        hit: Whether the result was in the cache.
        reasons: The differences, one line each; empty for a hit, and if there is no stored call to compare with.
        against: The most similar stored call, with which the call was compared; empty if there is none.

    Example:
        >>> Explanation(call="train(lr=0.2)", hit=True)
        train(lr=0.2): from the cache
    """

    call: str
    hit: bool
    reasons: tuple[str, ...] = ()
    against: str = ""

    def __str__(self) -> str:
        if self.hit:
            return f"{self.call}: from the cache"
        if not self.reasons:
            return f"{self.call}: computed, for no call of it is remembered"
        against = "" if self.against == self.call else f", against {self.against}"
        return "\n  ".join([f"{self.call}: computed{against}", *self.reasons])

    __repr__ = __str__


def make_note(key: Key, codes: Mapping[str, CodeType], lost: str = "") -> CallNote:
    """The note to store for a call."""
    return CallNote(digest=key.digest, call=key.call, parts=key.components, sources=sources_of(codes), lost=lost)


def sources_of(codes: Mapping[str, CodeType]) -> dict[str, str]:
    """The source texts by path, of those functions whose source certainly belongs to the code."""
    found = {path: source_of(code) for path, code in codes.items()}
    return {path: text for path, text in found.items() if text is not None}


def explain_miss(key: Key, notes: Iterable[CallNote], codes: Mapping[str, CodeType]) -> Explanation:
    """Explain why a call misses the cache, given the notes of stored calls."""
    notes = list(notes)
    same = next((note for note in notes if note.digest == key.digest), None)
    if same is not None:
        lost = same.lost or "its result made room for others, or was damaged"
        return Explanation(call=key.call, hit=False, reasons=(f"it was called before, but {lost}",), against=same.call)
    nearest = max(notes, key=lambda note: _similarity(key, note), default=None)
    if nearest is None:
        return Explanation(call=key.call, hit=False)
    reasons = tuple(_reasons(key, nearest, sources_of(codes)))
    return Explanation(call=key.call, hit=False, reasons=reasons, against=nearest.call)


def _similarity(key: Key, note: CallNote) -> tuple[bool, int]:
    """Equal arguments come first: what has changed since such a call is what a user wants to know."""
    mine = {(part.path, part.kind, part.digest) for part in key.components}
    its = {(part.path, part.kind, part.digest) for part in note.parts}
    arguments = key.arguments()
    same = arguments == {part for part in its if part[0].startswith("argument ")}
    return same, len(mine & its)


def _reasons(key: Key, note: CallNote, sources: Mapping[str, str]) -> list[str]:
    edits, mine, its, moved = _align_operations(key.components, note.parts)
    differences = list(_differences(mine, its))
    telling = [pair for pair in differences if _kind(pair) not in _CONTAINERS] or ([] if edits else differences)
    telling.sort(key=lambda pair: _ORDER.get(_kind(pair), 4))
    lines: dict[str, None] = dict.fromkeys(edits)
    for now, before in telling:
        lines.update(dict.fromkeys(_describe_change(now, before, sources, _with_new_paths(note.sources, moved))))
    return list(lines) or ["the same parts, put together in another way"]


def _align_operations(
    mine: Iterable[Component], its: Iterable[Component]
) -> tuple[list[str], list[Component], list[Component], dict[str, str]]:
    """Match the operations of the pipelines, and find those that were added or removed.

    The path of an operation contains its number in the pipeline, so after an added operation all later operations have
    other paths than before.

    Returns:
        The added and removed operations as text; the current and the earlier components that are left to compare, both
        with current paths; and the current paths of operations by their earlier ones.
    """
    now, before = list(mine), list(its)
    edits: list[str] = []
    moved: dict[str, str] = {}
    only: set[str] = set()
    earlier = _operations_by_pipeline(before)
    for root, here in _operations_by_pipeline(now).items():
        there = earlier.get(root, here)
        opcodes = difflib.SequenceMatcher(
            None, _operation_names(there), _operation_names(here), autojunk=False
        ).get_opcodes()
        for kind, first, last, begin, end in opcodes:
            old, new = there[first:last], here[begin:end]
            if kind == "equal":
                moved.update((part.path, same.path) for part, same in zip(old, new, strict=True))
                continue
            edits += [f"{root}: {part.detail} is gone" for part in old]
            edits += [f"{root}: {part.detail} is new" for part in new]
            only.update(f"before {part.path}" for part in old)
            only.update(f"now {part.path}" for part in new)
    left = [part for part in now if f"now {_operation_of(part.path)}" not in only]
    right = [part for part in before if f"before {_operation_of(part.path)}" not in only]
    return edits, left, [replace(part, path=_new_path(part.path, moved)) for part in right], moved


def _operations_by_pipeline(parts: Iterable[Component]) -> dict[str, list[Component]]:
    """The operations of the pipelines among the arguments, by the paths of the pipelines."""
    found: dict[str, list[Component]] = {}
    for part in parts:
        if part.kind == "operation" and " > " not in part.path:
            found.setdefault(part.path.rpartition("[")[0], []).append(part)
    return found


def _operation_names(operations: Iterable[Component]) -> list[str]:
    """The names of operations, without their arguments."""
    return [part.detail.partition("(")[0] for part in operations]


def _operation_of(path: str) -> str:
    """The path of the operation that a component belongs to, if it belongs to a pipeline argument."""
    return path.partition(" > ")[0]


def _new_path(path: str, moved: Mapping[str, str]) -> str:
    first, mark, rest = path.partition(" > ")
    return moved.get(first, first) + mark + rest


def _with_new_paths(sources: Mapping[str, str], moved: Mapping[str, str]) -> dict[str, str]:
    return {_new_path(path, moved): text for path, text in sources.items()}


Pair = tuple[Component | None, Component | None]


def _kind(pair: Pair) -> str:
    now, before = pair
    part = now or before
    assert part is not None
    # A new function is reported itself, not only its parts.
    return part.kind if now and before else "new"


def _differences(mine: Iterable[Component], its: Iterable[Component]) -> Iterator[Pair]:
    now, before = {part.path: part for part in mine}, {part.path: part for part in its}
    moved = {(part.kind, part.digest) for part in now.values()} & {(part.kind, part.digest) for part in before.values()}
    for path in [*now, *(path for path in before if path not in now)]:
        new, old = now.get(path), before.get(path)
        if " > nested " in path and not (new and old):
            continue  # then the function around it has changed too, and is reported
        if new and old:
            if (new.kind, new.digest) != (old.kind, old.digest):
                yield new, old
            continue
        part, others = (new, before) if new else (old, now)
        assert part is not None
        above = path.rpartition(" > ")[0]
        # Report the outermost new part only; and a part that is merely reached by another path now is not reported.
        if (part.kind, part.digest) not in moved and (not above or above in others):
            yield new, old


def _describe_change(
    now: Component | None, before: Component | None, sources: Mapping[str, str], earlier: Mapping[str, str]
) -> Iterator[str]:
    if now is None or before is None:
        part = now or before
        assert part is not None
        yield f"{_readable_path(part.path)}: {'new' if now else 'no longer there'} ({part.detail})"
    elif now.kind == before.kind == "code":
        path = now.path.partition(" > nested ")[0]
        yield from _describe_code_change(
            _readable_path(path.removesuffix(" > code")), sources.get(path), earlier.get(path)
        )
    elif now.detail != before.detail:
        yield f"{_readable_path(now.path)}: {before.detail} is now {now.detail}"
    elif now.kind == "array":
        yield f"{_readable_path(now.path)}: other contents ({now.detail})"
    else:
        yield f"{_readable_path(now.path)}: changed ({now.detail})"


def _readable_path(path: str) -> str:
    """A path without the steps that `__dsnb_fingerprint__` adds."""
    return path.replace(" > fingerprint", "")


def _describe_code_change(path: str, text: str | None, before: str | None) -> Iterator[str]:
    if text is None or before is None:
        yield f"{path}: its code changed (its source is not at hand)"
        return
    new, old = text.splitlines(), before.splitlines()
    found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [
        (first, last, begin, end)
        for kind, first, last, begin, end in found
        if kind != "equal" and any(map(_is_code, [*old[first:last], *new[begin:end]]))
    ]
    for first, last, begin, end in changes[:_SHOWN_LINES]:
        yield f"{path}, line {begin + 1}: {_change(old[first:last], new[begin:end])}"
    if len(changes) > _SHOWN_LINES:
        yield f"{path}: {len(changes) - _SHOWN_LINES} more places"
    if not changes:
        yield f"{path}: its code changed, and its source did not"


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _change(old: list[str], new: list[str]) -> str:
    if not old:
        return f"`{_first(new)}` is new"
    if not new:
        return f"`{_first(old)}` is gone"
    return f"`{_first(old)}` is now `{_first(new)}`"


def _first(lines: list[str]) -> str:
    """The first line of code, with "..." if there are more."""
    code = [line.strip() for line in lines if _is_code(line)]
    return (code[0] if code else "") + (" ..." if len(code) > 1 else "")

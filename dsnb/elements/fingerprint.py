"""Fingerprints: a digest of what a pipeline *is*, equal in two kernels, different when any part of it differs.

Hashed is a canonical walk and not a pickle: code without file and line, closures, defaults, the globals that the code
really reads and what those reach, arrays by content, library objects by name and version. The walk makes a graph of
nodes, breadth first and without recursion, so that cycles and depth are no limit; a node's digest covers what it
reaches, and which equal values happen to be one object does not matter. `fingerprint_values` tells what each kind of
value is made of, `fingerprint_graph` walks and hashes.

What cannot be seen by any such method: names computed by `getattr`, `globals()` and `eval`, files that are read, the
environment, the clock, the network. What has no value at all (an open file, a generator, a random generator that
running would change, an object whose `__getstate__` says something else each time) is listed: compare digests only
where nothing is listed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.elements.fingerprint_graph import GraphPart, ValueGraph
from dsnb.elements.fingerprint_parts import encode_parts
from dsnb.elements.imports import SourceFile

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Component:
    """One part of what a fingerprint covers.

    Attributes:
        path: Where it is, as in "pipeline[2] > function > global helper"; operations are numbered from the source.
        kind: "operation", "function", "value", "array", "class", "package" and so on.
        digest: Of the part itself, without what it reaches; in hexadecimal digits.
        detail: The part in a few words: a value, a function's name, an array's dtype and shape.
    """

    path: str
    kind: str
    digest: str
    detail: str


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a value is.

    Attributes:
        digest: 32 hexadecimal digits.
        components: All parts that it covers, from the source of a pipeline on.
        unhashable: Where something without a value stands, as in "pipeline[2] > function > global log (an open file:
            pass its path)". The digest is no key for anything that is kept while this is not empty.
        sources: The user's modules that functions import as they run.
        files: The files that datasets in it name.
    """

    digest: str
    components: tuple[Component, ...]
    unhashable: tuple[str, ...]
    sources: tuple[SourceFile, ...] = ()
    files: tuple[str, ...] = ()

    def difference(self, other: Fingerprint) -> str:
        """The first component that differs, in words; empty if nothing does.

        Example:
            >>> before.difference(after)
            'map(decode), function, global SCALE: 3.0 against 4.0'
        """
        if self.digest == other.digest and self.unhashable == other.unhashable:
            return ""
        mine, its = _by_path(self), _by_path(other)
        for path, component in mine.items():
            if path not in its:
                return f"{self._path_text(path)}: only the first has it ({component.detail})"
            if (component.kind, component.digest) != (its[path].kind, its[path].digest):
                return f"{self._path_text(path)}: {_describe_change(component, its[path])}"
        for path, component in its.items():
            if path not in mine:
                return f"{other._path_text(path)}: only the second has it ({component.detail})"
        return "the same parts, put together in another way"

    def _path_text(self, path: str) -> str:
        """A path with operations called by their names."""
        first, *rest = path.split(" > ")
        names = {part.path: part.detail for part in self.components if part.kind == "operation"}
        return ", ".join([names.get(first, first), *rest])


def fingerprint(value: Any, *, root: str = "pipeline", result: bool = False) -> Fingerprint:
    """The fingerprint of an operation, a function, or any other value.

    An object may say itself what it is: by a method `__dsnb_fingerprint__` that returns a value to walk in its place.
    For the key of a result it may say less, or more, by `__dsnb_result__`.

    Args:
        value: What to look at. Nothing of it is called, but for what pickling would call too.
        root: What the paths of the components begin with.
        result: Look at what a result that is computed with it in this process follows from: without what changes no
            element of a dataset (where a recording is, how far it is prefetched), and with what an imported module has
            become since.

    Example:
        >>> fingerprint(lambda x: x + 1).digest == fingerprint(lambda x: x + 1).digest
        True
    """
    graph = ValueGraph(value, result=result)
    graph.check_self_descriptions()
    emitted = list(graph.parts(root))
    packages = sorted(graph.packages.items())
    key = encode_parts("dsnb fingerprint 1", _PYTHON, importlib.util.MAGIC_NUMBER, graph.digest, packages)
    return Fingerprint(
        blake2b(key, digest_size=16).hexdigest(),
        (*_components(emitted), *_environment(packages)),
        tuple(f"{part.path} ({part.problem})" for part in emitted if part.problem),
        tuple(graph.sources),
        tuple(graph.files),
    )


def _components(emitted: list[GraphPart]) -> Iterator[Component]:
    return (Component(part.path, part.kind, part.digest.hex(), part.detail) for part in emitted)


def _environment(packages: list[tuple[str, str]]) -> Iterator[Component]:
    for path, kind, version in [("Python", "python", _PYTHON), *((name, "package", text) for name, text in packages)]:
        yield Component(path, kind, blake2b(version.encode(), digest_size=16).hexdigest(), version)


def _by_path(given: Fingerprint) -> dict[str, Component]:
    # Python's version first: another one changes all code, and is the one thing to say then.
    ordered = sorted(given.components, key=lambda component: component.kind != "python")
    return {component.path: component for component in ordered}


def _describe_change(mine: Component, its: Component) -> str:
    if mine.detail != its.detail:
        return f"{mine.detail} against {its.detail}"
    what = {"function": "what it refers to differs", "code": "its code differs", "array": "its contents differ"}
    return f"{what.get(mine.kind, 'it differs')} ({mine.detail})"

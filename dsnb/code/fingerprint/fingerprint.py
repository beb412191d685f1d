"""Fingerprints: a digest of what a pipeline *is*, equal in two kernels, different when any part of it differs.

Theory of operation. The digest covers a canonical walk, not a pickle: code without file and line, closures, defaults,
the globals that the code actually reads and what these reach, arrays by content, library objects by name and version.
The walk builds a graph of nodes, breadth first and without recursion, so that cycles and depth are no limit. A node's
digest covers all that the node reaches. Object identity does not matter: two equal values count the same as one value
used twice. `values` and `functions` decompose values, `graph` walks and hashes.

The walk cannot see names computed by `getattr`, `globals()` and `eval`, files that are read, the environment, the clock
or the network. Objects without a value (an open file, a generator, a random generator whose state running would change,
an object whose `__getstate__` differs each time) are listed as unhashable: compare digests only if that list is empty.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from dsnb.code.fingerprint.graph import GraphPart, ValueGraph
from dsnb.code.fingerprint.parts import encode_parts
from dsnb.code.imports import SourceFile

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Component(msgspec.Struct, frozen=True):
    """One part of what a fingerprint covers.

    Attributes:
        path: Its path from the root, as in "pipeline[2] > function > global helper"; operations are numbered from the
            source.
        kind: "operation", "function", "value", "array", "class", "package" and so on.
        digest: The digest of the part itself, without the parts that it reaches; in hexadecimal digits.
        detail: A short description: a value, a function's name, an array's dtype and shape.
    """

    path: str
    kind: str
    digest: str
    detail: str


class Fingerprint(msgspec.Struct, frozen=True):
    """The identity of a value.

    Attributes:
        digest: 32 hexadecimal digits.
        components: All parts that it covers, from the source of a pipeline on.
        unhashable: The paths of objects without a value, as in "pipeline[2] > function > global log (an open file:
            pass its path)". Do not use the digest as a key for stored results unless this is empty.
        sources: The user's modules that functions import when they run.
        files: The files that datasets in it name.
    """

    digest: str
    components: tuple[Component, ...]
    unhashable: tuple[str, ...]
    sources: tuple[SourceFile, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def libraries(self) -> tuple[str, ...]:
        """The installed packages that it reaches, with their versions, as in "numpy==2.3.5"."""
        return tuple(f"{part.path}=={part.detail}" for part in self.components if part.kind == "package")

    def difference(self, other: Fingerprint) -> str:
        """The first component that differs, in words; empty if there is none.

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
        """A path as text for users, with an operation's name in place of its number."""
        first, *rest = path.split(" > ")
        names = {part.path: part.detail for part in self.components if part.kind == "operation"}
        return ", ".join([names.get(first, first), *rest])


def fingerprint(value: Any, *, root: str = "pipeline", result: bool = False) -> Fingerprint:
    """The fingerprint of an operation, a function, or any other value.

    A class may define a method `__dsnb_fingerprint__` that returns a value to fingerprint in place of the object, and a
    method `__dsnb_result__` that does so for the key of a result, where less or more may matter.

    Args:
        value: The value. No method of it is called except those that pickling would call, and the two above.
        root: The beginning of the components' paths.
        result: Whether to identify the results computed with the value in this process. Leaves out settings that change
            no element of a dataset (where a recording is stored, how many elements are prefetched), and includes how
            imported modules differ from their files.

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
    # Python's version comes first: another version changes all bytecode, so it is the only difference worth reporting.
    ordered = sorted(given.components, key=lambda component: component.kind != "python")
    return {component.path: component for component in ordered}


def _describe_change(mine: Component, its: Component) -> str:
    if mine.detail != its.detail:
        return f"{mine.detail} against {its.detail}"
    what = {"function": "what it refers to differs", "code": "its code differs", "array": "its contents differ"}
    return f"{what.get(mine.kind, 'it differs')} ({mine.detail})"

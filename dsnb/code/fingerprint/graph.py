"""The graph of a fingerprint: builds a graph of nodes from a value, gives each node a digest, and lists the parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from dsnb.code.fingerprint.functions import CODE_DECOMPOSERS, decompose_class_or_module
from dsnb.code.fingerprint.parts import Decomposer, Decomposition, encode_plain, short_repr
from dsnb.code.fingerprint.values import VALUE_DECOMPOSERS, decompose_by_base, decompose_by_hook, decompose_instance
from dsnb.code.imports import SourceFile

_PATH_STEPS = 24
_DECOMPOSERS: dict[type, Decomposer] = {**VALUE_DECOMPOSERS, **CODE_DECOMPOSERS}


def decompose(value: Any) -> Decomposition:
    """The decomposition of any value."""
    plain = encode_plain(value)
    if plain is not None:
        return Decomposition("value", plain, detail=short_repr(value))
    looker = _DECOMPOSERS.get(type(value), decompose_class_or_module)
    return looker(value) or decompose_by_hook(value) or decompose_by_base(value) or decompose_instance(value)


class _Node:
    """One value of the graph; `targets` are the indices of the nodes that it reaches, in the order of its edges."""

    __slots__ = ("decomposition", "digest", "own_digest", "targets", "value")

    def __init__(self, value: Any) -> None:
        self.value = value  # kept alive: nodes are found by id(), which must not be reused
        self.decomposition = Decomposition("")
        self.targets: list[int] = []
        self.own_digest = b""
        self.digest = b""

    def set_decomposition(self, decomposition: Decomposition) -> None:
        self.decomposition = decomposition
        labels = (
            []
            if decomposition.unordered
            else [label.encode("utf-8", "surrogatepass") for label, _ in decomposition.edges]
        )
        self.own_digest = _hash(decomposition.kind.encode(), decomposition.content, *labels)

    def combined_digest(self, reached: Iterable[bytes]) -> bytes:
        """The digest of this node, given the digests of the nodes that it reaches."""
        return _hash(self.own_digest, *(sorted(reached) if self.decomposition.unordered else reached))


class _Path(msgspec.Struct, frozen=True):
    """The path of a part. Of the middle of a long path only the number of steps is kept, to bound the memory used."""

    start: str
    depth: int = 0
    label: str = ""

    def to(self, label: str) -> _Path:
        if self.depth < _PATH_STEPS:
            return _Path(f"{self.start} > {label}", self.depth + 1)
        return _Path(self.start, self.depth + 1, label)

    def __str__(self) -> str:
        return f"{self.start} > ({self.depth - _PATH_STEPS} steps) > {self.label}" if self.label else self.start


class GraphPart(msgspec.Struct, frozen=True):
    """One part of the graph: the fields of a component, why it has no value (`problem`), and the value itself."""

    path: str
    kind: str
    digest: bytes
    detail: str
    problem: str
    value: Any


class ValueGraph:
    """The graph of one value and all that it reaches.

    Args:
        value: The value.
        result: Whether `__dsnb_result__` may replace an object, for the key of a result.

    Attributes:
        digest: The digest of the value with all that it reaches.
        packages: The libraries that it reaches, with their versions.
        sources: The user's modules that its functions import when they run.
        files: The paths of the files that datasets in it name; a dict used as an ordered set.
    """

    def __init__(self, value: Any, *, result: bool = False) -> None:
        self.packages: dict[str, str] = {}
        self.sources: list[SourceFile] = []
        self.files: dict[str, None] = {}
        self._result = result
        self._nodes: list[_Node] = []
        self._numbers: dict[int, int] = {}
        self._build(value)
        for group in _strongly_connected_components([node.targets for node in self._nodes]):
            self._assign_digests(group)
        self.digest = self._nodes[0].digest

    def check_self_descriptions(self) -> None:
        """Decompose self-described values a second time, and mark those whose description differs as unhashable."""
        self_described = [node for node in self._nodes if node.decomposition.self_described]
        again = ValueGraph([node.value for node in self_described], result=self._result) if self_described else self
        for node in self_described:
            there = again._nodes[again._numbers[id(node.value)]]  # noqa: SLF001 - of the same class
            if there.digest != node.digest:
                node.decomposition = replace(
                    node.decomposition, problem="it describes itself differently each time it is asked"
                )

    def _build(self, value: Any) -> None:
        self._number(value)
        for node in self._nodes:  # the loop appends to this list: breadth first
            subject = self._resolve_result_hook(node.value)
            decomposition = decompose(subject)
            node.set_decomposition(decomposition)
            node.targets = [self._number(target) for _, target in decomposition.edges]
            self.packages.update(decomposition.packages)
            if isinstance(node.value, SourceFile):
                self.sources.append(node.value)
            self.files.update(dict.fromkeys(_files_of(subject)))

    def _resolve_result_hook(self, value: Any) -> Any:
        """The value to decompose in place of `value`."""
        while self._result and (hook := _hook(value, "__dsnb_result__")) is not None:
            stands_for = hook(value)
            if stands_for is value:
                break
            value = stands_for
        return value

    def _number(self, value: Any) -> int:
        number = self._numbers.setdefault(id(value), len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(_Node(value))
        return number

    def _assign_digests(self, group: list[int]) -> None:
        """Give digests to a group of nodes that reach each other; all other nodes that they reach have digests already.

        In a cycle, the digests are refined in steps: each step combines a node's own digest with the present digests of
        the nodes that it reaches, until a step distinguishes no more nodes than the one before. A digest of the whole
        cycle is added at the end, to cover nodes that are further away than the number of steps.
        """
        nodes = [self._nodes[number] for number in group]
        if len(group) == 1 and group[0] not in nodes[0].targets:
            nodes[0].digest = self._combined_digest(nodes[0])
            return
        for node in nodes:
            node.digest = node.own_digest
        distinct = 0
        digests = self._refine_digests(nodes)
        while len(digests) > distinct:
            distinct = len(digests)
            digests = self._refine_digests(nodes)
        cycle = _hash(*sorted(digests))
        for node in nodes:
            node.digest = _hash(node.digest, cycle)

    def _refine_digests(self, nodes: list[_Node]) -> set[bytes]:
        for node, digest in zip(nodes, [self._combined_digest(node) for node in nodes], strict=True):
            node.digest = digest
        return {node.digest for node in nodes}

    def _combined_digest(self, node: _Node) -> bytes:
        return node.combined_digest(self._nodes[target].digest for target in node.targets)

    def parts(self, root: str) -> Iterator[GraphPart]:
        """The parts, from the source of a pipeline on; a part reached twice is listed where it is reached first."""
        waiting = self._operation_nodes(root) or deque([(_Path(root), self._nodes[0])])
        seen = {node.digest for _, node in waiting}
        while waiting:
            path, node = waiting.popleft()
            decomposition = node.decomposition
            yield GraphPart(
                str(path), decomposition.kind, node.own_digest, decomposition.detail, decomposition.problem, node.value
            )
            reached = [(path.to(label), self._nodes[target]) for (label, _), target in self._edges(node)]
            for step in sorted(reached, key=lambda pair: pair[1].digest) if decomposition.unordered else reached:
                # Plain values and unhashable parts are listed on every path: users most often look for these.
                if step[1].digest not in seen or step[1].decomposition.kind in {"value", "unhashable"}:
                    seen.add(step[1].digest)
                    waiting.append(step)

    @staticmethod
    def _edges(node: _Node) -> Iterator[tuple[tuple[str, Any], int]]:
        return zip(node.decomposition.edges, node.targets, strict=True)

    def _operation_nodes(self, root: str) -> deque[tuple[_Path, _Node]]:
        """The operations of a pipeline, inputs first, numbered in this order from 1; empty for another value."""
        order: dict[int, _Node] = {}
        waiting = [0] if self._nodes[0].decomposition.kind == "operation" else []
        while waiting:
            number = waiting[-1]
            inputs = [n for n in self._nodes[number].targets if self._nodes[n].decomposition.kind == "operation"]
            missing = [n for n in inputs if n not in order]
            waiting += reversed(missing)
            if not missing:
                order.setdefault(number, self._nodes[number])
                waiting.pop()
        return deque((_Path(f"{root}[{index}]"), node) for index, node in enumerate(order.values(), 1))


def _hook(value: Any, name: str) -> Callable[[Any], Any] | None:
    return None if isinstance(value, type) else getattr(type(value), name, None)


def _files_of(value: Any) -> Iterable[str]:
    """The files that a dataset's source names."""
    hook = _hook(value, "__dsnb_files__")
    return hook(value) if hook is not None else ()


def _hash(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _strongly_connected_components(graph: list[list[int]]) -> Iterator[list[int]]:
    """The strongly connected components of a graph, each after all that it reaches (Tarjan, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    work = [(0, iter(graph[0]))]  # all nodes are reachable from node 0, the value itself
    while work:
        number, targets = work[-1]
        if number not in order:
            order[number] = low[number] = len(order)
            stack.append(number)
            on_stack.add(number)
        for target in targets:
            if target not in order:
                work.append((target, iter(graph[target])))
                break
            if target in on_stack:
                low[number] = min(low[number], order[target])
        else:
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[number])
            if low[number] == order[number]:
                group = [stack.pop()]
                while group[-1] != number:
                    group.append(stack.pop())
                on_stack.difference_update(group)
                yield group

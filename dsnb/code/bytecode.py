"""Analysis of code objects: their identity regardless of where they were written, and the globals that they read.

Bytecode is what runs. It exists on a worker and inside `%%time`, and cannot be outdated as a source file can. The
analysis leaves out the file, line numbers, function names, docstrings and constants that are never loaded. Constants
are numbered by first use, because adding or removing a docstring shifts their indices.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import msgspec

_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_CACHE = dis.opmap["CACHE"]
_HAS_CONST = frozenset(dis.hasconst)
# Instructions whose argument is the index of a name, with the number of low bits that newer Pythons use for flags.
_GLOBAL_READS = {
    dis.opmap[name]: shift
    for name, shift in (("LOAD_GLOBAL", 1), ("LOAD_NAME", 0), ("LOAD_FROM_DICT_OR_GLOBALS", 0))
    if name in dis.opmap
}
_ATTRIBUTE_READS = {
    dis.opmap[name]: shift
    for name, shift in (("LOAD_ATTR", int(sys.version_info >= (3, 12))), ("LOAD_METHOD", 0))
    if name in dis.opmap
}
_STORE_NAME = dis.opmap["STORE_NAME"]
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]
# Names under which a class body stores where it was written, which does not change what it does.
_LOCATION_NAMES = {"__qualname__", "__doc__", "__firstlineno__", "__static_attributes__", "__module__"}
# OPTIMIZED, NEWLOCALS, VARARGS, VARKEYWORDS, GENERATOR, COROUTINE, ITERABLE_COROUTINE, ASYNC_GENERATOR: the flags that
# change how code runs. NESTED, HAS_DOCSTRING and the __future__ flags only depend on where it was written.
_FLAGS = 0x3AF


class Import(NamedTuple):
    """One import statement: `from ..name import members`, where `level` is the number of dots."""

    level: int
    name: str
    members: tuple[str, ...]


class CodeAnalysis(msgspec.Struct, frozen=True):
    """The result of analysing a code object.

    Attributes:
        parts: What the code does, as values of str, bytes, int and tuples of those.
        constants: The constants that it loads, in the order of first use; without its docstring, a class's line number
            and the like.
        reads: The globals that it reads, each with the attributes read directly from it: ("helpers", "prep").
        imports: The modules that it imports when it runs.
    """

    parts: tuple[Any, ...]
    constants: tuple[Any, ...]
    reads: tuple[tuple[str, ...], ...]
    imports: tuple[Import, ...]


@lru_cache(maxsize=4096)
def _analyse_code(code: _ByIdentity) -> CodeAnalysis:
    return _Reader(code.code).read()


class _ByIdentity(msgspec.Struct, frozen=True, eq=False):
    """A cache key that compares code objects by identity.

    Code objects may compare equal although their nested ones differ in something that the analysis covers.
    """

    code: CodeType

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.code is other.code

    def __hash__(self) -> int:
        return id(self.code)


def analyse_code(code: CodeType) -> CodeAnalysis:
    """Analyse `code`. Its nested functions are among the constants, as code objects.

    Example:
        >>> analyse_code((lambda x: np.sin(x)).__code__).reads
        (('np', 'sin'),)
    """
    return _analyse_code(_ByIdentity(code))


def all_reads(code: CodeType) -> list[tuple[str, ...]]:
    """The globals that `code` and its nested functions read, each once, in the order of first use."""
    reads: dict[tuple[str, ...], None] = {}
    for part in walk_code(code):
        reads.update(dict.fromkeys(analyse_code(part).reads))
    return list(reads)


def all_imports(code: CodeType) -> list[Import]:
    """The imports of `code` and its nested functions, each once."""
    imports: dict[Import, None] = {}
    for part in walk_code(code):
        imports.update(dict.fromkeys(analyse_code(part).imports))
    return list(imports)


def walk_code(code: CodeType) -> Iterator[CodeType]:
    """`code` and all nested code objects, breadth first."""
    waiting = [code]
    while waiting:
        part = waiting.pop(0)
        yield part
        waiting += [constant for constant in analyse_code(part).constants if isinstance(constant, CodeType)]


class _Reader:
    """Analyses the instructions of one code object."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.instructions = list(_instructions(code.co_code))
        self.numbers: dict[int, int] = {}

    def read(self) -> CodeAnalysis:
        operations = b"".join(self._operation(number) for number in range(len(self.instructions)))
        code = self.code
        parts = (
            operations, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags & _FLAGS,
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_exceptiontable,
        )  # fmt: skip
        constants = tuple(code.co_consts[index] for index in self.numbers)
        return CodeAnalysis(parts, constants, tuple(self._reads()), tuple(self._imports()))

    def _operation(self, index: int) -> bytes:
        operation, argument = self.instructions[index]
        if operation in _HAS_CONST:
            # Omit the instruction, not only the constant: since Python 3.13 a class's line number may share its
            # constant with a number that matters.
            if self._stored_as(index + 1) in _LOCATION_NAMES:
                return b""
            argument = self.numbers.setdefault(argument, len(self.numbers))
        return operation.to_bytes(2, "little") + argument.to_bytes(4, "little")

    def _stored_as(self, index: int) -> str:
        operation, argument = self.instructions[index] if index < len(self.instructions) else (_CACHE, 0)
        return self.code.co_names[argument] if operation == _STORE_NAME else ""

    def _reads(self) -> Iterator[tuple[str, ...]]:
        """Each global read, once, with its chain of attributes.

        So `x.size` does not depend on a global called `size`, and `helpers.prep` not on all of `helpers`.
        """
        seen = set()
        for index, (operation, argument) in enumerate(self.instructions):
            # A class body begins with `__module__ = __name__`, which only says where it was written.
            if operation in _GLOBAL_READS and self._stored_as(index + 1) != "__module__":
                first = self.code.co_names[argument >> _GLOBAL_READS[operation]]
                chain = (first, *self._attributes(index + 1))
                if chain not in seen:
                    seen.add(chain)
                    yield chain

    def _attributes(self, index: int) -> Iterator[str]:
        while index < len(self.instructions) and self.instructions[index][0] in _ATTRIBUTE_READS:
            operation, argument = self.instructions[index]
            yield self.code.co_names[argument >> _ATTRIBUTE_READS[operation]]
            index += 1

    def _imports(self) -> Iterator[Import]:
        for index, (operation, argument) in enumerate(self.instructions):
            if operation == _IMPORT_NAME:
                yield Import(self._level(index), self.code.co_names[argument], tuple(self._imported_members(index + 1)))

    def _level(self, index: int) -> int:
        """The number of dots of a relative import, which is loaded two instructions before IMPORT_NAME."""
        operation, argument = self.instructions[index - 2]
        level = self.code.co_consts[argument] if operation in _HAS_CONST else 0
        return level if isinstance(level, int) else 0

    def _imported_members(self, index: int) -> Iterator[str]:
        """The names of `from module import a, b`, which compiles to one IMPORT_FROM and one store for each name."""
        while index < len(self.instructions) and self.instructions[index][0] == _IMPORT_FROM:
            yield self.code.co_names[self.instructions[index][1]]
            index += 2


def _instructions(raw: bytes) -> Iterator[tuple[int, int]]:
    extended = 0
    for offset in range(0, len(raw), 2):
        operation, argument = raw[offset], raw[offset + 1] | extended
        extended = 0
        if operation == _EXTENDED_ARG:
            extended = argument << 8
        elif operation != _CACHE:
            yield operation, argument

"""What people write in cells and in modules beside the notebook works on a worker that has neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsnb.pipeline.graph import restore
from tests.support.graphs import blob_loader
from tests.support.notebook_folder import NotebookFolder, notebook_folder

BASE = """
from __future__ import annotations
import abc, enum
from dataclasses import dataclass, field
from typing import ClassVar, Generic, NamedTuple, TypeVar

T = TypeVar("T")

class Color(enum.Enum):
    RED = 1
    BLUE = 2
    def loud(self): return self.name.upper()

class Bits(enum.IntFlag):
    A = 1
    B = 2

class Point(NamedTuple):
    x: int
    y: int = 2
    def total(self): return self.x + self.y

class Base(abc.ABC):
    known: ClassVar[dict[str, type]] = {}
    def __init_subclass__(cls):
        Base.known[cls.__name__] = cls
    @abc.abstractmethod
    def go(self, x): ...
    @property
    def five(self): return 5
    @staticmethod
    def more(x): return x + 1
    @classmethod
    def make(cls): return cls()

class Box(Generic[T]):
    def __init__(self, value: T): self.value = value

@dataclass(slots=True)
class Slotted:
    a: int = 1
    b: list[int] = field(default_factory=list)

@dataclass(frozen=True)
class Config:
    scale: float = 2.0
    color: Color = Color.RED
"""

CHILD = """
import functools
import trv_base
from trv_base import Base

class Child(Base):
    def go(self, x): return super().go(x) or self.five + x + trv_base.Slotted().a
    def __call__(self, x): return self.go(x)

class Tagging(type):
    def __call__(cls, *arguments):
        made = super().__call__(*arguments)
        made.tag = "tagged"
        return made

class Tagged(metaclass=Tagging):
    pass

def adding(function):
    @functools.wraps(function)
    def inner(*arguments): return function(*arguments) + 1
    return inner

@adding
def doubled(x): return x * 2

@functools.singledispatch
def kind(x): return "object"

@kind.register
def _(x: int): return "int"

count = 0

def visit(x):
    global count
    count += 1
"""

MINE = """
from trv_base import Base

class Mine(Base):
    def go(self, x):
        from trv_child import Child
        return Child().go(x), sorted(Base.known)

def f(x): return Mine().go(x)
"""

CASES: dict[str, tuple[str, Any]] = {
    "a callable object": ("from trv_child import Child\nf = Child()", 9),
    "a bound method": ("from trv_child import Child\nf = Child().go", 9),
    "a class method of a base in another module": (
        "from trv_child import Child\ndef f(x): return Child.make().go(x)", 9,
    ),
    "a static method": ("import trv_child\ndef f(x): return trv_child.Child.more(x)", 4),
    "an enum": (
        "from trv_base import Color\ndef f(x): return Color.RED is Color(1), Color['BLUE'].loud()", (True, "BLUE"),
    ),
    "an enum as a default": ("from trv_base import Color\ndef f(x, c=Color.RED): return c is Color.RED", True),
    "flags": ("from trv_base import Bits\ndef f(x): return int(Bits.A | Bits.B)", 3),
    "a named tuple": ("from trv_base import Point\ndef f(x): return Point(x)._replace(y=5).total()", 8),
    "a generic class": ("from trv_base import Box\ndef f(x): return Box[int](x).value", 3),
    "a dataclass with slots": ("from trv_base import Slotted\ndef f(x): return Slotted(x).b", []),
    "an instance of a frozen dataclass": (
        "from trv_base import Color, Config\nc = Config(5)\ndef f(x): return c.scale, c.color is Color.RED",
        (5, True),
    ),
    "a metaclass": ("from trv_child import Tagged\ndef f(x): return Tagged().tag", "tagged"),
    "a decorated function": ("from trv_child import doubled as f", 7),
    "a function that dispatches": (
        "import trv_child\ndef f(x): return trv_child.kind(x), trv_child.kind('')", ("int", "object"),
    ),
    "a partial of what a module made": (
        "import functools, trv_child\nf = functools.partial(trv_child.adding(max), 3)", 4,
    ),
    "a global that a module's function assigns": (
        "import trv_child\ndef f(x):\n    trv_child.visit(x)\n    return trv_child.count", 1,
    ),
    "a module by a computed name": ("import trv_base\ndef f(x): return getattr(trv_base, 'Po' + 'int')(x).total()", 5),
    "a class that a cell derives from a module's": (
        MINE,
        (9, ["Child", "Mine"]),
    ),
    "a pattern": ("import re\nR = re.compile('a+')\ndef f(x): return R.match('aab').group()", "aa"),
    "recursion": ("def f(x): return 1 if x < 2 else x * f(x - 1)", 6),
    "a closure that keeps count": (
        "def make():\n    n = [0]\n    def g(x):\n        n[0] += x\n        return n[0]\n    return g\nf = make()", 3,
    ),
    "a coroutine": ("import asyncio\nasync def g(x): return x\ndef f(x): return asyncio.run(g(x))", 3),
    "a protocol": (
        "import typing as t\n@t.runtime_checkable\nclass P(t.Protocol): a: int\ndef f(x): return isinstance(1, P)",
        False,
    ),
}  # fmt: skip


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[NotebookFolder]:
    with notebook_folder(tmp_path / "beside") as found:
        found.write(trv_base=BASE, trv_child=CHILD)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("source, result", CASES.values(), ids=CASES)
def test_it_works_where_nothing_of_it_is(beside: NotebookFolder, source: str, result: Any) -> None:
    graph = beside.serialise_cell(source)
    assert not graph.fingerprint.unhashable
    assert beside.run_in_other_process(graph, 3) == result


def test_a_module_that_was_edited_and_reloaded_is_another_pipeline_and_runs_as_it_is_now(
    beside: NotebookFolder,
) -> None:
    """Also on a worker that has the older one: what came by value is nobody else's."""
    import importlib

    source = "import trv_child\ndef f(x): return trv_child.doubled(x)"
    old = beside.serialise_cell(source)
    beside.write(trv_child=CHILD.replace("x * 2", "x * 3"))
    importlib.reload(__import__("trv_child"))
    new = beside.serialise_cell(source)
    assert "doubled" in old.fingerprint.difference(new.fingerprint)
    with beside.as_other_process():
        restored: list[Any] = [restore(graph.definition, blob_loader(graph)) for graph in (old, new, old)]
        assert [each.function(3) for each in restored] == [7, 10, 7]

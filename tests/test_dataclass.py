from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

import dsnb.dataclass

Decorator = Callable[..., Any]
STANDARD, OURS = dataclasses.dataclass, dsnb.dataclass.dataclass


def point(dataclass: Decorator) -> Any:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Point:
        x: int
        y: int = 2
        seen: list[int] = field(default_factory=list, compare=False)
        note: str = field(default="", repr=False)

    return Point


def plain(dataclass: Decorator) -> Any:
    @dataclass(slots=True, order=True)
    class Plain:
        first: int
        last: int = 5
        between: dict[int, int] = field(default_factory=dict)
        total: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            self.total = self.first + self.last

    return Plain


def derived(dataclass: Decorator) -> Any:
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Base:
        shared: ClassVar[bool] = False
        inputs: tuple[int, ...] = ()
        cached: dict[int, int] = field(default_factory=dict, init=False)

    @dataclass(frozen=True, kw_only=True)
    class Derived(Base):
        shared: ClassVar[bool] = True
        size: int
        inputs: tuple[int, ...] = (1,)

    return Derived


def slotted_twice(dataclass: Decorator) -> Any:
    @dataclass(frozen=True, slots=True)
    class Base:
        a: int
        b: int = 1

    @dataclass(frozen=True, slots=True)
    class Derived(Base):
        b: int = 2
        c: int = 3

    return Derived


def own_methods(dataclass: Decorator) -> Any:
    @dataclass(frozen=True, slots=True, init=False)
    class Own:  # noqa: PLW1641 - the decorator adds it
        a: int

        def __init__(self, **values: int) -> None:
            object.__setattr__(self, "a", values["a"])

        def __repr__(self) -> str:
            return f"own {self.a}"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.a == other.a

    return Own


def empty(dataclass: Decorator) -> Any:
    @dataclass
    class Empty:
        """Nothing."""

    return Empty


DECLARED: dict[Callable[[Decorator], Any], tuple[dict[str, Any], ...]] = {
    point: ({"x": 1}, {"x": 1, "y": 3, "seen": [4]}, {"x": 1, "note": "a"}),
    plain: ({"first": 1}, {"first": 2}, {"first": 1, "between": {1: 1}}),
    derived: ({"size": 1}, {"size": 1, "inputs": (2, 3)}),
    slotted_twice: ({"a": 1}, {"a": 1, "c": 4}),
    own_methods: ({"a": 1}, {"a": 2}),
    empty: ({},),
}
each = pytest.mark.parametrize("declare", DECLARED, ids=[declare.__name__ for declare in DECLARED])


def both(declare: Callable[[Decorator], Any]) -> tuple[list[Any], list[Any]]:
    """Instances of the standard library's class and of ours, with the same arguments in the same order."""
    standard, ours = declare(STANDARD), declare(OURS)
    return [standard(**given) for given in DECLARED[declare]], [ours(**given) for given in DECLARED[declare]]


def outcome(act: Callable[[], Any]) -> str:
    try:
        return repr(act())
    except Exception as error:  # noqa: BLE001 - what is raised is what is compared
        return f"{type(error).__name__}: {error}"


@each
def test_the_class_is_the_one_that_the_standard_library_makes(declare: Callable[[Decorator], Any]) -> None:
    standard, ours = declare(STANDARD), declare(OURS)
    assert repr(dataclasses.fields(ours)) == repr(dataclasses.fields(standard))
    assert str(inspect.signature(ours)) == str(inspect.signature(standard))
    assert ours.__init__.__annotations__ == standard.__init__.__annotations__
    assert ours.__init__.__qualname__ == standard.__init__.__qualname__
    assert repr(ours.__dataclass_params__) == repr(standard.__dataclass_params__)
    assert ours.__match_args__ == standard.__match_args__
    assert getattr(ours, "__slots__", None) == getattr(standard, "__slots__", None)
    assert (ours.__hash__ is None) == (standard.__hash__ is None)
    assert [hasattr(ours, one.name) for one in dataclasses.fields(ours)] == [
        hasattr(standard, one.name) for one in dataclasses.fields(standard)
    ]


@each
def test_instances_behave_as_those_of_the_standard_library(declare: Callable[[Decorator], Any]) -> None:
    standard, ours = both(declare)
    for theirs, mine in zip(standard, ours, strict=True):
        assert repr(mine) == repr(theirs)
        assert dataclasses.asdict(mine) == dataclasses.asdict(theirs)
        assert mine == copy.copy(mine)
        assert outcome(lambda one=mine: hash(one)) == outcome(lambda one=theirs: hash(one))
    for i in range(len(ours)):
        for j in range(len(ours)):
            assert (ours[i] == ours[j]) == (standard[i] == standard[j])
            assert outcome(lambda i=i, j=j: ours[i] < ours[j]) == outcome(lambda i=i, j=j: standard[i] < standard[j])


@each
def test_what_goes_wrong_is_told_as_the_standard_library_tells_it(declare: Callable[[Decorator], Any]) -> None:
    standard, ours = declare(STANDARD), declare(OURS)
    given = DECLARED[declare][0]
    for arguments in ({}, {**given, "unknown": 1}):
        assert outcome(lambda a=arguments: ours(**a)) == outcome(lambda a=arguments: standard(**a))
    assert outcome(lambda: ours(1, 2, 3, 4, 5)) == outcome(lambda: standard(1, 2, 3, 4, 5))


@each
def test_nothing_changes_a_frozen_instance(declare: Callable[[Decorator], Any]) -> None:
    standard, ours = both(declare)
    for name in [one.name for one in dataclasses.fields(ours[0])]:
        changed = [outcome(lambda one=one, name=name: setattr(one, name, 7)) for one in (standard[0], ours[0])]
        assert changed[0] == changed[1]
        deleted = [outcome(lambda one=one, name=name: delattr(one, name)) for one in (standard[0], ours[0])]
        assert deleted[0].partition(":")[0] == deleted[1].partition(":")[0]


def test_a_frozen_instance_with_slots_takes_nothing_new_either() -> None:
    fixed: Any = Kept(a=1)
    with pytest.raises(FrozenInstanceError):
        fixed.a = 2
    with pytest.raises(FrozenInstanceError):
        fixed.other = 2
    with pytest.raises(FrozenInstanceError):
        del fixed.a


def test_a_subclass_that_is_no_dataclass_may_have_attributes_that_change() -> None:
    more = type("More", (derived(OURS),), {})(size=1)
    more.other = 2
    assert more.other == 2
    with pytest.raises(FrozenInstanceError):
        more.size = 2


def test_a_class_of_the_standard_library_can_inherit_from_one_of_ours() -> None:
    @STANDARD(frozen=True, kw_only=True)
    class Further(derived(OURS)):
        more: int

    made = Further(size=1, more=2)
    assert [one.name for one in dataclasses.fields(made)] == ["inputs", "cached", "size", "more"]
    assert dataclasses.replace(made, size=3) == Further(size=3, more=2)
    with pytest.raises(FrozenInstanceError):
        made.size = 2


def test_a_mutable_default_is_made_for_each_instance() -> None:
    cls = point(OURS)
    assert cls(x=1).seen is not cls(x=1).seen


def test_a_pattern_takes_positional_fields() -> None:
    match slotted_twice(OURS)(a=1, c=5):
        case object(a=1) as found:
            assert slotted_twice(OURS).__match_args__ == ("a", "b", "c")
            assert found.c == 5


@dsnb.dataclass.dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    a: int
    b: list[int] = field(default_factory=list)


def test_a_frozen_instance_with_slots_goes_through_pickle() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Kept(a=1, b=[2]), protocol)) == Kept(a=1, b=[2])


ALL_CLASSES = """
import contextlib, dataclasses, importlib, inspect, pkgutil, sys, warnings
warnings.simplefilter("ignore")
import dsnb.dataclass
if sys.argv[1] == "standard":
    dsnb.dataclass.dataclass = dataclasses.dataclass
for module in pkgutil.walk_packages(dsnb.__path__, "dsnb."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ModuleNotFoundError):  # of a library that this machine lacks
            importlib.import_module(module.name)
found = {}
for name, module in sorted(sys.modules.items()):
    for cls in [one for one in vars(module).values() if isinstance(one, type)] if name.startswith("dsnb.") else []:
        if dataclasses.is_dataclass(cls):
            found[f"{cls.__module__}.{cls.__qualname__}"] = cls
for name, cls in sorted(found.items()):
    fields = [(one.name, one.type, one.init, one.repr, one.compare, one.kw_only) for one in dataclasses.fields(cls)]
    given = [one for one in ("__eq__", "__repr__", "__lt__", "__setattr__", "__getstate__") if one in vars(cls)]
    print(name, fields, inspect.signature(cls), cls.__match_args__, cls.__dataclass_params__, given, end=" ")
    print(vars(cls).get("__slots__"), getattr(cls.__hash__, "__qualname__", None))
"""


def all_classes(maker: str) -> list[str]:
    run = [sys.executable, "-c", ALL_CLASSES, maker]
    return subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def test_every_class_of_dsnb_is_what_the_standard_library_would_have_made() -> None:
    ours, standard = all_classes("ours"), all_classes("standard")
    assert len(ours) > 200
    assert ours == standard


DEFINE = """
import sys, types, dataclasses
import dsnb.dataclass, dsnb.wire
written = []
sys.addaudithook(lambda event, args: event == "compile" and args[1] == "<string>" and written.append(args))
import dsnb.wire.schedule, dsnb.wire.link, dsnb.wire.cache_policy
import dsnb.wire.messages
defined = len(written)
dsnb.wire.messages.ForgetRequest(job_name="a")
used = len(written)
dsnb.wire.messages.ForgetRequest(job_name="b")
print(defined, used > 0, len(written) - used)
"""


def test_methods_are_compiled_when_they_are_first_used_and_once() -> None:
    done = subprocess.run([sys.executable, "-c", DEFINE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["0", "True", "0"]

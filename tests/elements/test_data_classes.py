"""Named tuples and dataclasses inside elements come to a reader as the reader's own classes."""

from __future__ import annotations

import sys
import types
from collections import namedtuple
from dataclasses import InitVar, dataclass, field
from typing import Any

import pytest

from dsnb.elements.data_classes import field_names, local_class, note_class
from dsnb.elements.frame import frames_of
from dsnb.elements.spec import TensorSpec
from dsnb.elements.structure import (
    class_of,
    elements_of,
    flatten,
    local_class_of,
    structure_from_json,
    structure_of,
    structure_to_json,
)

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - what users have


@dataclass
class Sample:
    image: Any
    label: Any = 0


def read(*elements: Any) -> list[Any]:
    """The elements as a reader in this process gets them from a worker in it."""
    (frame,) = frames_of(list(elements), None)
    assert not isinstance(frame, Exception)
    return list(frame.elements(0, len(elements)))


def from_elsewhere(element: Any) -> Any:
    """The class of an element that came over the wire."""
    return local_class_of(structure_from_json(structure_to_json(structure_of(element))))


@pytest.mark.parametrize("element", [Point(1, 2), Sample(1, 2)], ids=["named tuple", "dataclass"])
def test_an_element_comes_back_as_the_class_of_that_name(element: Any) -> None:
    assert from_elsewhere(element) is type(element)
    assert read(element, element) == [element, element]


def test_a_class_that_was_defined_anew_is_the_new_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that an earlier look found: `isinstance` in the next cell asks for the newest."""
    cell = types.ModuleType("cell_of_test")
    monkeypatch.setitem(sys.modules, "cell_of_test", cell)
    code = "from dataclasses import dataclass\n@dataclass\nclass Sample:\n    image: int\n"
    exec(code, vars(cell))
    old = vars(cell)["Sample"]
    assert type(read(old(1))[0]) is old
    exec(code, vars(cell))
    (element,) = read(old(1))
    assert type(element) is vars(cell)["Sample"]
    assert type(element) is not old


def test_a_worker_goes_on_with_the_class_of_its_pipeline_whatever_bears_the_name_here() -> None:
    """A later function of the pipeline asks `isinstance` by the class that came with it."""
    copy = dataclass(type("Sample", (), {"__annotations__": {"image": Any, "label": Any}, "__module__": __name__}))
    structure = structure_of(copy(1, 2))
    assert class_of(structure) is copy
    assert type(elements_of(structure, iter([[1], [2]]))[0]) is copy
    assert type(read(copy(1, 2))[0]) is Sample
    assert structure == structure_of(Sample(1, 2))


@pytest.mark.parametrize("origin", [("no.where", "Pair"), (__name__, "f.<locals>.Pair"), ("", "Pair"), ("sys", "path")])
@pytest.mark.parametrize("kind", ["namedtuple", "dataclass"])
def test_a_class_that_is_not_here_is_made_once(kind: Any, origin: tuple[str, str]) -> None:
    cls: Any = local_class(kind, origin, ("x", "y"))
    element = cls(1, 2)
    assert (element.x, element.y) == (1, 2)
    assert local_class(kind, origin, ("x", "y")) is cls
    assert from_elsewhere(element) is cls, "and described as what it stands for"
    assert "no" not in sys.modules


def test_a_class_of_the_name_with_other_fields_or_of_another_kind_is_not_taken() -> None:
    assert local_class("dataclass", (__name__, "Sample"), ("image",)) is not Sample
    assert local_class("namedtuple", (__name__, "Sample"), ("image", "label")) is not Sample


def test_a_class_from_inside_a_function_is_found_once_a_pipeline_took_it_along() -> None:
    @dataclass
    class Inner:
        x: int

    note_class(Inner)
    assert from_elsewhere(Inner(1)) is Inner


def test_a_named_tuple_whose_fields_were_renamed_comes_with_the_same() -> None:
    cls: Any = local_class("namedtuple", ("nowhere", "f.<lambda>"), ("x", "_1"))
    assert cls(1, 2)._asdict() == {"x": 1, "_1": 2}


def test_init_is_not_run_again_by_a_reader() -> None:
    runs = []

    @dataclass(frozen=True)
    class Checked:
        x: float
        scale: InitVar[float]
        twice: float = field(init=False)

        def __post_init__(self, scale: float) -> None:
            runs.append(scale)
            object.__setattr__(self, "twice", 2 * self.x)

    note_class(Checked)
    (element,) = read(Checked(3.0, 2.0))
    assert type(element) is Checked
    assert (element.x, element.twice) == (3.0, 6.0)
    assert runs == [2.0]


def test_the_fields_are_the_parts_in_their_order() -> None:
    assert field_names(Sample) == ("image", "label")
    assert flatten(Sample(Sample(1, 2), (3, None))) == [1, 2, 3]
    assert field_names(dict) is field_names(tuple) is field_names(int) is None


def test_a_spec_is_no_structure_though_it_is_a_dataclass() -> None:
    spec = TensorSpec((1,), float)
    assert flatten(Sample(spec, spec)) == [spec, spec]

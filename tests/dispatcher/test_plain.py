from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dsnb.dispatcher.plain import from_json, to_json
from dsnb.wire.ranges import Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(slots=True)
class Outer:
    pairs: tuple[tuple[str, int], ...] = ()
    table: dict[int, Inner] = field(default_factory=dict)
    rows: list[Inner] = field(default_factory=list)
    place: int | None = None
    on: bool = False
    over: Ranges = field(default_factory=Ranges)


def test_what_is_written_is_read_back_with_its_kinds_and_its_order() -> None:
    table = {3: Inner(name="three", sizes=(1, 2)), 1: Inner(name="öne")}
    outer = Outer(pairs=(("a", 1), ("b", 2)), table=table, rows=[Inner(name="r")], place=7, on=True)
    outer.over.update([(0, 3), (5, 8)])
    again = from_json(Outer, to_json(outer))

    assert again == outer
    assert list(again.table) == [3, 1]
    assert from_json(Outer, to_json(Outer())) == Outer()


def test_a_field_that_an_older_version_did_not_write_has_its_default() -> None:
    assert from_json(Inner, '{"name":"old"}') == Inner(name="old")


@pytest.mark.parametrize(
    "text,told",
    [
        ("", "Expecting value"),
        ("[]", "is no dict"),
        ("{}", "Inner lacks its name"),
        ('{"name":1}', "1 is no str"),
        ('{"name":"a","sizes":[true]}', "True is no int"),
        ('{"name":"a","sizes":{}}', "is no list"),
        ('{"name":"a","colour":"red"}', "Inner has no colour"),
    ],
)
def test_what_is_of_another_kind_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_json(Inner, text)


def test_a_pair_has_two_members() -> None:
    with pytest.raises(ValueError, match="zip"):
        from_json(Outer, '{"pairs":[["a",1,2]]}')
    with pytest.raises(TypeError, match="neither plain nor a dataclass"):
        to_json(Outer(pairs=((object(), 1),)))  # type: ignore[arg-type]

"""`dataclass` as the standard library has it, at a twentieth of the price until there is an instance.

To define one takes the standard library up to half a millisecond, for it writes and compiles each method there and
then; and dsnb has hundreds of classes, of which a process uses a third. So a class has its slots at once, and what
follows from its fields when it is first looked up: a stand-in makes it and gives it its own place in the class. From
then on nothing of this module is in the way.

All but `__init__` is made by the standard library, of a class that has the same fields and nothing else: these are
dataclasses to `fields`, `replace`, `asdict`, `match` and whoever inherits from them. `__init__` is written here, since
a frozen instance that has slots can be filled through them, in two thirds of the time.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, fields, is_dataclass
from functools import lru_cache
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """As `dataclasses.dataclass`; of its options init, eq, order, frozen, slots and kw_only."""
        return _defined(cls, options) if cls is not None else lambda cls: _defined(cls, options)


__all__ = ("dataclass",)  # which type checkers know as the standard library's

_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
_NO_METHODS = {"init": False, "repr": False, "eq": False}
# With which options the standard library makes what has that name.
_ASKED: Mapping[str, Mapping[str, bool]] = {
    "__match_args__": _NO_METHODS,
    "__repr__": {**_NO_METHODS, "repr": True},
    "__eq__": {**_NO_METHODS, "eq": True},
    "__hash__": {**_NO_METHODS, "unsafe_hash": True},
    **{name: {**_NO_METHODS, "eq": True, "order": True} for name in _ORDER},
}
_Declared = Mapping[str, tuple[Any, Any]]
"""The annotation and the default of each field, by its name; the default may be a `Field`, which says more."""


def _defined(cls: type, options: Mapping[str, bool]) -> type:
    """The class, or the same with slots, with stand-ins for what follows from its fields."""
    declared = {name: (kind, getattr(cls, name, MISSING)) for name, kind in cls.__annotations__.items()}
    has = vars(cls)
    later, at_once = _additions(**options)
    body = {name: value for name, value in at_once.items() if name not in has}
    # A class with an `__eq__` of its own and no `__hash__` was given None for that by Python.
    body |= {name: _Later(declared, options) for name in later if has.get(name) is None}
    if options.get("slots"):
        return _with_slots(cls, body)
    for name, (_, default) in declared.items():
        if isinstance(default, Field):
            _put(cls, name, default.default)
    for name, value in body.items():
        _put(cls, name, value)
    return cls


@lru_cache
def _additions(
    *,
    init: bool = True,
    eq: bool = True,
    order: bool = False,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,  # noqa: ARG001 - a matter of the fields
) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """The names of what a class is given later, and what it is given at once."""
    later = ["__dataclass_fields__", "__dataclass_params__", "__match_args__", "__repr__"]
    later += [name for name, wanted in (("__init__", init), ("__eq__", eq), ("__hash__", eq and frozen)) if wanted]
    at_once: dict[str, Any] = {"__replace__": dataclasses.replace}
    if eq and not frozen:
        at_once["__hash__"] = None
    if frozen:
        at_once |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
    if frozen and slots:
        at_once |= {"__getstate__": _state, "__setstate__": _set_state}
    return (*later, *(_ORDER if order else ())), at_once


def _with_slots(cls: type, body: Mapping[str, Any]) -> type:
    """The class again, since slots can only be had from the beginning."""
    had = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    names = [name for name, kind in cls.__annotations__.items() if "ClassVar[" not in kind]
    kept = {name: value for name, value in vars(cls).items() if name not in {"__dict__", "__weakref__", *names}}
    kept |= {"__qualname__": cls.__qualname__, "__slots__": tuple(name for name in names if name not in had)}
    made: type = type(cls)(cls.__name__, cls.__bases__, {**kept, **body})
    return made


def _put(cls: type, name: str, value: Any) -> None:
    if value is MISSING:
        delattr(cls, name)
    else:
        setattr(cls, name, value)
    if isinstance(value, _Later):
        value.__set_name__(cls, name)


class _Later:
    """Stands in a class for what is made when it is looked up."""

    __slots__ = ("_declared", "_home", "_name", "_options")

    def __init__(self, declared: _Declared, options: Mapping[str, bool]) -> None:
        self._declared, self._options = declared, options

    def __set_name__(self, owner: type, name: str) -> None:
        self._home, self._name = owner, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        made = self._made()
        setattr(self._home, self._name, made)  # two threads at once make the same
        bind = getattr(type(made), "__get__", None)
        return made if bind is None else bind(made, instance, owner)

    def _made(self) -> Any:
        home, options = self._home, self._options
        if self._name == "__dataclass_fields__":
            return _fields(home, self._declared, kw_only=options.get("kw_only", False))
        if self._name == "__init__":
            return _init(home, frozen=options.get("frozen", False))
        asked = options if self._name == "__dataclass_params__" else _ASKED[self._name]
        return getattr(_standard(home, _known(home), asked), self._name)


def _fields(home: type, declared: _Declared, *, kw_only: bool) -> Mapping[str, Field[Any]]:
    inherited: dict[str, tuple[Any, Any]] = {}
    for base in reversed(home.__mro__[1:]):
        inherited |= _known(base)
    made = _standard(home, {**inherited, **declared}, {**_NO_METHODS, "kw_only": kw_only})
    found: Mapping[str, Field[Any]] = made.__dataclass_fields__
    return found


def _known(cls: Any) -> _Declared:
    """The fields of a class, as they would be declared in another."""
    return {field.name: (field.type, field) for field in dataclasses.fields(cls)} if is_dataclass(cls) else {}


def _standard(home: type, declared: _Declared, options: Mapping[str, bool]) -> Any:
    """What the standard library makes of these fields, in a class that has nothing else."""
    given = {name: default for name, (_, default) in declared.items() if default is not MISSING}
    body = {name: default for name, default in given.items() if not isinstance(default, MemberDescriptorType)}  # a slot
    body |= {"__annotations__": {name: kind for name, (kind, _) in declared.items()}}
    body |= {"__module__": home.__module__, "__qualname__": home.__qualname__}
    body |= {"__doc__": home.__name__}  # without one it would write the signature
    return dataclasses.dataclass(**options)(type(home.__name__, (), body))


# ---- methods


def _init(home: Any, *, frozen: bool) -> Any:
    """The method `__init__` of a class, written and compiled for its fields; the less is written, the sooner."""
    known: dict[str, Any] = {"__set": object.__setattr__, "__omitted": _OMITTED}
    lines = [_assignment(home, field, _value(field, known), known, frozen=frozen) for field in fields(home)]
    lines.append("self.__post_init__()" if hasattr(home, "__post_init__") else "return")
    given = [field for field in fields(home) if field.init]
    keywords = {field.name: _default(field) for field in given if field.kw_only}
    others = {field.name: _default(field) for field in given if not field.kw_only}
    known |= {f"__default_{name}": default for name, default in others.items() if default is not MISSING}
    first = [f"{name}=__default_{name}" if f"__default_{name}" in known else name for name in others]
    parameters = ["self", *first, *(["*", *keywords] if keywords else [])]
    made = _compiled(f"__init__({', '.join(parameters)})", lines, home.__module__, known)
    made.__kwdefaults__ = {name: default for name, default in keywords.items() if default is not MISSING}
    made.__annotations__ = {**{field.name: field.type for field in given}, "return": None}
    made.__qualname__ = f"{home.__qualname__}.__init__"
    return made


def _compiled(head: str, lines: Iterable[str], module: str, known: Mapping[str, Any]) -> Any:
    """A function of a module, which knows some names besides."""
    body = "\n  ".join(filter(None, lines))
    source = f"def make({', '.join(known)}):\n def {head}:\n  {body}\n return __init__"
    scope: dict[str, Any] = {}
    exec(source, vars(sys.modules[module]), scope)  # noqa: S102 - of names of fields, as in the standard library
    return scope["make"](**known)


def _assignment(home: Any, field: Field[Any], value: str, known: dict[str, Any], *, frozen: bool) -> str:
    """What sets a field to a value; nothing if there is none."""
    name, slot = field.name, getattr(home, field.name, None)
    if not (value and frozen):
        return value and f"self.{name} = {value}"
    if not isinstance(slot, MemberDescriptorType):
        return f"__set(self, {name!r}, {value})"
    known[f"__set_{name}"] = slot.__set__
    return f"__set_{name}(self, {value})"


def _value(field: Field[Any], known: dict[str, Any]) -> str:
    """What a field is set to; nothing if it is left unset."""
    name = f"__given_{field.name}"
    if field.default_factory is not MISSING:
        known[name] = field.default_factory
        return f"{name}() if {field.name} is __omitted else {field.name}" if field.init else f"{name}()"
    if field.init:
        return field.name
    known[name] = field.default
    return "" if field.default is MISSING else name


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else _OMITTED


class _Omitted:
    """Stands for an argument whose default is made anew for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_OMITTED = _Omitted()


def _refuse_set(self: object, name: str, value: object) -> None:
    if _is_fixed(type(self), name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_delete(self: object, name: str) -> None:
    if _is_fixed(type(self), name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_fixed(cls: Any, name: str) -> bool:
    """Whether instances of a class may not have that changed: what a class adds that is no dataclass may be."""
    return "__dataclass_fields__" in vars(cls) or name in cls.__dataclass_fields__


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)

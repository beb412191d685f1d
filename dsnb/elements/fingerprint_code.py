"""What functions, classes and modules are made of, for a fingerprint: the user's by value, a library's by name."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsnb.elements.bytecode import take_apart
from dsnb.elements.fingerprint_parts import Look, Looker, encode, library, packed, type_name
from dsnb.elements.imports import imported_files
from dsnb.elements.library import library_name
from dsnb.elements.reach import cell_value, dispatch_registry, variables
from dsnb.elements.usercode import compiled_module, is_user_class, is_user_module, is_user_namespace, namespace

# What a class or module holds that tells where it was written, or that Python derives.
_PLACE = {
    "__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__", "__annotations__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__dict__", "__weakref__", "__orig_bases__",
    "__parameters__", "__type_params__", "__slotnames__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__",
    "__dataclass_params__", "__match_args__", "__builtins__", "__cached__", "__loader__", "__spec__", "__file__",
    "__path__", "__name__", "__package__",
}  # fmt: skip
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _look_at_function(function: types.FunctionType) -> Look:
    if is_user_namespace(function.__globals__):
        return _by_value(function, packed("function"))
    found = library_name(function)
    if found:
        return library(found)
    registry = dispatch_registry(function)
    if registry:  # beside these it has only what using it leaves
        return Look(
            "function", packed("singledispatch"), (("registry", registry),), f"function {function.__qualname__}"
        )
    # What a library's function made for the user: `functools.wraps` and the like, a closure around the user's own.
    name = f"{function.__globals__.get('__name__')}.{function.__code__.co_qualname}"
    return dataclasses.replace(_by_value(function, packed(name), whole=False), packages=library(name).packages)


def _by_value(function: types.FunctionType, content: bytes, *, whole: bool = True) -> Look:
    edges: list[tuple[str, Any]] = [("code", function.__code__)]
    reached = [part for part in variables(function) if whole or part.kind != "global"]
    edges += [(f"{part.kind} {part.name}", part.value) for part in reached]
    if whole:
        package = str(function.__globals__.get("__package__") or "")
        edges += [("import", file) for file in imported_files(function.__code__, package)]
    edges += [(f".{name}", item) for name, item in sorted(vars(function).items())]
    return Look("function", content, tuple(edges), f"function {function.__qualname__}")


def _look_at_code(code: types.CodeType) -> Look:
    apart = take_apart(code)
    plain = [encode(constant) for constant in apart.constants]
    nested = [constant for constant, content in zip(apart.constants, plain, strict=True) if content is None]
    edges = tuple((f"nested {number}", constant) for number, constant in enumerate(nested))
    return Look("code", packed(apart.parts, plain), edges, f"code of {code.co_name}")


def _look_at_class(cls: type) -> Look:
    found = "" if is_user_class(cls) else library_name(cls)
    if found:
        return library(found)
    bases = [base for base in cls.__bases__ if base is not object]
    edges: list[tuple[str, Any]] = [(f"base {number}", base) for number, base in enumerate(bases)]
    if type(cls) is not type:
        edges.append(("metaclass", type(cls)))
    edges += [(f".{name}", member) for name, member in sorted(vars(cls).items()) if not _is_derived(cls, name, member)]
    compiled = compiled_module(cls.__module__)
    if compiled is not None:
        edges.append(("module", compiled))
    parameters = ""
    if "__dataclass_fields__" in vars(cls):
        parameters = repr(vars(cls)["__dataclass_params__"])
        edges += _fields(cls)
    return Look("class", packed(cls.__name__, parameters), tuple(edges), f"class {type_name(cls)}")


def _is_derived(cls: type, name: str, member: Any) -> bool:
    if name in _PLACE or isinstance(member, _DESCRIPTORS):
        return True
    # The methods that a dataclass decorator wrote follow from the fields.
    code = getattr(getattr(member, "__wrapped__", member), "__code__", None)
    generated = "__dataclass_fields__" in vars(cls) and code is not None and code.co_filename == "<string>"
    return generated and name.startswith("__")


def _fields(cls: type) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(cls):
        yield f"field {field.name}", (field.init, field.repr, field.hash, field.compare, field.kw_only)
        for kind in ("default", "default_factory", "metadata"):
            value = getattr(field, kind)
            if value is not dataclasses.MISSING:
                yield f"{kind} {field.name}", value


def _look_at_module(module: types.ModuleType) -> Look:
    """A module that is used as a value, so that any of its names may be meant."""
    names = namespace(module)
    name = str(names.get("__name__"))
    if not is_user_module(module):
        return library(name)
    file = str(names.get("__file__") or "")
    if file and not file.endswith((".py", ".pyc")) and name != "__main__":
        return Look("module", Path(file).read_bytes(), detail=f"module {name}")
    edges = tuple((f".{key}", item) for key, item in sorted(names.items()) if key not in _PLACE)
    return Look("module", packed("module"), edges, f"module {name}")


def _look_at_builtin(function: types.BuiltinFunctionType) -> Look:
    owner = function.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        compiled = compiled_module(function.__module__)
        if compiled is not None:
            return Look("function", packed(function.__qualname__), (("module", compiled),), function.__qualname__)
        return library(f"{function.__module__ or 'builtins'}.{function.__qualname__}")
    return Look("method", packed(function.__name__), (("self", owner),), f"method {function.__qualname__}")


def _look_at_method(method: Any) -> Look:
    function = getattr(method, "__func__", method.__name__)
    return Look("method", b"", (("function", function), ("self", method.__self__)), f"method {method.__qualname__}")


def _look_at_descriptor(descriptor: Any) -> Look:
    edges = (("class", descriptor.__objclass__),)
    return Look("descriptor", packed(descriptor.__name__), edges, f"method {descriptor.__qualname__}")


def _look_at_partial(value: functools.partial[Any]) -> Look:
    given = [(f"argument {number}", item) for number, item in enumerate(value.args)]
    named = [(f"argument {name}", item) for name, item in sorted(value.keywords.items())]
    extra = [(f".{name}", item) for name, item in sorted(vars(value).items())]
    return Look("partial", packed(len(given)), (("function", value.func), *given, *named, *extra), "partial")


def _look_at_wrapper(value: Any) -> Look:
    return Look("wrapper", packed(type(value).__name__), (("function", value.__func__),), type(value).__name__)


def _look_at_cached(value: Any) -> Look:
    # How many results it keeps does not change them.
    return Look("wrapper", packed("lru_cache"), (("function", value.__wrapped__),), "lru_cache")


def _look_at_property(value: property) -> Look:
    return Look(
        "wrapper", packed("property"), (("get", value.fget), ("set", value.fset), ("delete", value.fdel)), "property"
    )


def _look_at_cell(cell: types.CellType) -> Look:
    return Look("cell", edges=tuple(("contents", value) for value in cell_value(cell)), detail="closure cell")


def look_by_meta(value: Any) -> Look | None:
    """Classes and modules, whose types have many subclasses."""
    if isinstance(value, type):
        return _look_at_class(value)
    return _look_at_module(value) if isinstance(value, types.ModuleType) else None


CODE_LOOKERS: dict[type, Looker] = {
    types.FunctionType: _look_at_function,
    types.CodeType: _look_at_code,
    types.BuiltinFunctionType: _look_at_builtin,
    types.MethodType: _look_at_method,
    types.MethodWrapperType: _look_at_method,
    types.MethodDescriptorType: _look_at_descriptor,
    types.WrapperDescriptorType: _look_at_descriptor,
    types.ClassMethodDescriptorType: _look_at_descriptor,
    types.GetSetDescriptorType: _look_at_descriptor,
    types.MemberDescriptorType: _look_at_descriptor,
    types.CellType: _look_at_cell,
    functools.partial: _look_at_partial,
    functools._lru_cache_wrapper: _look_at_cached,
    staticmethod: _look_at_wrapper,
    classmethod: _look_at_wrapper,
    property: _look_at_property,
}

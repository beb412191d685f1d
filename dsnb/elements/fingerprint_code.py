"""What functions, classes and modules are made of, for a fingerprint: the user's by value, a library's by name."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsnb.elements.bytecode import analyse_code
from dsnb.elements.fingerprint_parts import (
    Decomposer,
    Decomposition,
    encode_parts,
    encode_plain,
    library_reference,
    type_name,
)
from dsnb.elements.imports import imported_files
from dsnb.elements.library_names import importable_name
from dsnb.elements.references import cell_value, singledispatch_registry, variables
from dsnb.elements.usercode import extension_module, is_user_class, is_user_module, is_user_namespace, namespace

# What a class or module holds that tells where it was written, or that Python derives.
_LOCATION_NAMES = {
    "__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__", "__annotations__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__dict__", "__weakref__", "__orig_bases__",
    "__parameters__", "__type_params__", "__slotnames__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__",
    "__dataclass_params__", "__match_args__", "__builtins__", "__cached__", "__loader__", "__spec__", "__file__",
    "__path__", "__name__", "__package__",
}  # fmt: skip
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _decompose_function(function: types.FunctionType) -> Decomposition:
    if is_user_namespace(function.__globals__):
        return _function_by_value(function, encode_parts("function"))
    found = importable_name(function)
    if found:
        return library_reference(found)
    registry = singledispatch_registry(function)
    if registry:  # beside these it has only what using it leaves
        return Decomposition(
            "function", encode_parts("singledispatch"), (("registry", registry),), f"function {function.__qualname__}"
        )
    # What a library's function made for the user: `functools.wraps` and the like, a closure around the user's own.
    name = f"{function.__globals__.get('__name__')}.{function.__code__.co_qualname}"
    return dataclasses.replace(
        _function_by_value(function, encode_parts(name), with_globals=False), packages=library_reference(name).packages
    )


def _function_by_value(function: types.FunctionType, content: bytes, *, with_globals: bool = True) -> Decomposition:
    edges: list[tuple[str, Any]] = [("code", function.__code__)]
    reached = [part for part in variables(function) if with_globals or part.kind != "global"]
    edges += [(f"{part.kind} {part.name}", part.value) for part in reached]
    if with_globals:
        package = str(function.__globals__.get("__package__") or "")
        edges += [("import", file) for file in imported_files(function.__code__, package)]
    edges += [(f".{name}", item) for name, item in sorted(vars(function).items())]
    return Decomposition("function", content, tuple(edges), f"function {function.__qualname__}")


def _decompose_code(code: types.CodeType) -> Decomposition:
    analysis = analyse_code(code)
    plain = [encode_plain(constant) for constant in analysis.constants]
    nested = [constant for constant, content in zip(analysis.constants, plain, strict=True) if content is None]
    edges = tuple((f"nested {number}", constant) for number, constant in enumerate(nested))
    return Decomposition("code", encode_parts(analysis.parts, plain), edges, f"code of {code.co_name}")


def _decompose_class(cls: type) -> Decomposition:
    found = "" if is_user_class(cls) else importable_name(cls)
    if found:
        return library_reference(found)
    bases = [base for base in cls.__bases__ if base is not object]
    edges: list[tuple[str, Any]] = [(f"base {number}", base) for number, base in enumerate(bases)]
    if type(cls) is not type:
        edges.append(("metaclass", type(cls)))
    edges += [(f".{name}", member) for name, member in sorted(vars(cls).items()) if not _is_derived(cls, name, member)]
    compiled = extension_module(cls.__module__)
    if compiled is not None:
        edges.append(("module", compiled))
    parameters = ""
    if "__dataclass_fields__" in vars(cls):
        parameters = repr(vars(cls)["__dataclass_params__"])
        edges += _fields(cls)
    return Decomposition("class", encode_parts(cls.__name__, parameters), tuple(edges), f"class {type_name(cls)}")


def _is_derived(cls: type, name: str, member: Any) -> bool:
    if name in _LOCATION_NAMES or isinstance(member, _DESCRIPTORS):
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


def _decompose_module(module: types.ModuleType) -> Decomposition:
    """A module that is used as a value, so that any of its names may be meant."""
    names = namespace(module)
    name = str(names.get("__name__"))
    if not is_user_module(module):
        return library_reference(name)
    file = str(names.get("__file__") or "")
    if file and not file.endswith((".py", ".pyc")) and name != "__main__":
        return Decomposition("module", Path(file).read_bytes(), detail=f"module {name}")
    edges = tuple((f".{key}", item) for key, item in sorted(names.items()) if key not in _LOCATION_NAMES)
    return Decomposition("module", encode_parts("module"), edges, f"module {name}")


def _decompose_builtin(function: types.BuiltinFunctionType) -> Decomposition:
    owner = function.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        compiled = extension_module(function.__module__)
        if compiled is not None:
            return Decomposition(
                "function", encode_parts(function.__qualname__), (("module", compiled),), function.__qualname__
            )
        return library_reference(f"{function.__module__ or 'builtins'}.{function.__qualname__}")
    return Decomposition(
        "method", encode_parts(function.__name__), (("self", owner),), f"method {function.__qualname__}"
    )


def _decompose_method(method: Any) -> Decomposition:
    function = getattr(method, "__func__", method.__name__)
    return Decomposition(
        "method", b"", (("function", function), ("self", method.__self__)), f"method {method.__qualname__}"
    )


def _decompose_descriptor(descriptor: Any) -> Decomposition:
    edges = (("class", descriptor.__objclass__),)
    return Decomposition("descriptor", encode_parts(descriptor.__name__), edges, f"method {descriptor.__qualname__}")


def _decompose_partial(value: functools.partial[Any]) -> Decomposition:
    given = [(f"argument {number}", item) for number, item in enumerate(value.args)]
    named = [(f"argument {name}", item) for name, item in sorted(value.keywords.items())]
    extra = [(f".{name}", item) for name, item in sorted(vars(value).items())]
    return Decomposition(
        "partial", encode_parts(len(given)), (("function", value.func), *given, *named, *extra), "partial"
    )


def _decompose_wrapper(value: Any) -> Decomposition:
    return Decomposition(
        "wrapper", encode_parts(type(value).__name__), (("function", value.__func__),), type(value).__name__
    )


def _decompose_lru_cache(value: Any) -> Decomposition:
    # How many results it keeps does not change them.
    return Decomposition("wrapper", encode_parts("lru_cache"), (("function", value.__wrapped__),), "lru_cache")


def _decompose_property(value: property) -> Decomposition:
    return Decomposition(
        "wrapper",
        encode_parts("property"),
        (("get", value.fget), ("set", value.fset), ("delete", value.fdel)),
        "property",
    )


def _decompose_cell(cell: types.CellType) -> Decomposition:
    return Decomposition("cell", edges=tuple(("contents", value) for value in cell_value(cell)), detail="closure cell")


def decompose_class_or_module(value: Any) -> Decomposition | None:
    """Classes and modules, whose types have many subclasses."""
    if isinstance(value, type):
        return _decompose_class(value)
    return _decompose_module(value) if isinstance(value, types.ModuleType) else None


CODE_DECOMPOSERS: dict[type, Decomposer] = {
    types.FunctionType: _decompose_function,
    types.CodeType: _decompose_code,
    types.BuiltinFunctionType: _decompose_builtin,
    types.MethodType: _decompose_method,
    types.MethodWrapperType: _decompose_method,
    types.MethodDescriptorType: _decompose_descriptor,
    types.WrapperDescriptorType: _decompose_descriptor,
    types.ClassMethodDescriptorType: _decompose_descriptor,
    types.GetSetDescriptorType: _decompose_descriptor,
    types.MemberDescriptorType: _decompose_descriptor,
    types.CellType: _decompose_cell,
    functools.partial: _decompose_partial,
    functools._lru_cache_wrapper: _decompose_lru_cache,
    staticmethod: _decompose_wrapper,
    classmethod: _decompose_wrapper,
    property: _decompose_property,
}

"""Which code is the user's: the rule that fingerprints and pickles share.

User code is code that a worker cannot be expected to have installed and that changes between two runs of a cell: cells
and scripts (`__main__`), and every module outside the standard library and site-packages. A package installed as
editable is outside them and therefore user code. dsnb itself is never user code, wherever it runs from.

The owner of a function follows from the *globals* of its code, not from its `__module__`, which `functools.wraps`
copies from one function to another.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Any

_OURS = __name__.partition(".")[0]
_INSTALLED = {"site-packages", "dist-packages"}


def user_modules() -> list[ModuleType]:
    """The user's modules that are imported now, including `__main__`.

    A module imported under two names is included once; namespace packages hold no code and are left out.
    """
    names = _user_module_names(tuple((name, id(module)) for name, module in list(sys.modules.items())))
    return [module for module in map(sys.modules.get, names) if module is not None]


@lru_cache(maxsize=1)
def _user_module_names(imported: tuple[tuple[str, int], ...]) -> list[str]:
    """The names of the user's modules among those imported.

    Cached until the imported modules change, because each error of an element calls this; by name and id, to keep no
    module alive.
    """
    modules = ((name, sys.modules.get(name)) for name, _ in imported)
    return [
        name for name, module in modules if isinstance(module, ModuleType) and _is_primary_user_module(name, module)
    ]


def is_user_module(module: ModuleType) -> bool:
    """Whether a module is user code."""
    return is_user_namespace(namespace(module))


def is_user_namespace(names: Mapping[str, Any]) -> bool:
    """Whether code with these globals is user code; also works on a worker, where its module is not imported."""
    name, file = names.get("__name__"), names.get("__file__")
    if not isinstance(name, str):
        return True  # made by exec() in a bare dictionary
    if not isinstance(file, str):
        file = None if names.get("__path__") is None else next(iter(names["__path__"]), None)
    return _is_users(name, file, bare=names.get("__spec__") is None)


def is_user_class(cls: type) -> bool:
    """Whether a class is user code. A class whose module is not imported was pickled by value, so it is."""
    module = sys.modules.get(cls.__module__)
    if isinstance(module, ModuleType):
        return is_user_module(module)
    return _is_users(str(cls.__module__), None, bare=True)


def extension_module(name: str | None) -> ModuleType | None:
    """The imported user module of that name if it is an extension module, of which only the file can be inspected."""
    module = sys.modules.get(name or "")
    if not isinstance(module, ModuleType) or not is_user_module(module):
        return None
    file = namespace(module).get("__file__")
    return module if isinstance(file, str) and file.endswith(tuple(EXTENSION_SUFFIXES)) else None


def namespace(module: ModuleType) -> dict[str, Any]:
    """A module's names, without triggering the import of a lazily loaded module."""
    if not issubclass(type(module), ModuleType):  # the library objects of cffi: `isinstance` takes them for modules
        return {"__name__": "builtins"}  # no user code
    names = object.__getattribute__(module, "__dict__")
    assert isinstance(names, dict)
    return names


def _is_primary_user_module(name: str, module: ModuleType) -> bool:
    """Whether this is a user module registered under its own name."""
    # Check the name first: `user_modules` could not find the module again under a second name such as "__mp_main__".
    return namespace(module).get("__name__") == name and is_user_module(module) and not _is_namespace_package(module)


def _is_namespace_package(module: ModuleType) -> bool:
    names = namespace(module)
    return "__path__" in names and names.get("__file__") is None


@cache
def _is_users(name: str, file: str | None, *, bare: bool) -> bool:
    top = name.partition(".")[0]
    if name in {"__main__", "__mp_main__"}:
        return True
    if top == _OURS:
        return False
    if file is not None and os.path.isabs(file):
        return not _is_installed(file)
    if top in sys.stdlib_module_names or file is not None:
        return False  # torch.ops and similar modules have a relative `__file__`, "_ops.py"
    package = sys.modules.get(top)
    if package is not None and top != name:
        return is_user_module(package)
    # No file and no import spec: user code if it was made in a cell by types.ModuleType(...), but not if it is one of
    # Cython's internal modules, or that of the package cryptography.
    return bare and not top.startswith(("_cython_", "cython_runtime", "_openssl"))


def _is_installed(file: str) -> bool:
    # The path as given first: resolving the symbolic links of a thousand modules takes 30 ms.
    return _is_below_library(os.path.normpath(file)) or _is_below_library(os.path.realpath(file))


def _is_below_library(path: str) -> bool:
    return not _INSTALLED.isdisjoint(path.split(os.sep)) or path.startswith(_library_roots())


@lru_cache(maxsize=1)
def _library_roots() -> tuple[str, ...]:
    """The folders of the standard library and installed packages, each as given and with symbolic links resolved."""
    paths = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths.append(site.getusersitepackages())
    both = {form for path in paths if path for form in (os.path.normpath(path), os.path.realpath(path))}
    return tuple(sorted(path + os.sep for path in both))

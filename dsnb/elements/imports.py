"""Modules of the user's that code imports *as it runs*: where their source is, and how it comes to run on a worker.

A module that a function reaches through a global travels with the values that it has in the kernel (`pickling`). One
that a function imports in its body has no value yet: what it is, is its source. So the sources go along, with those of
all that they import, and `import helpers` finds them before anything else, in each process but the one that wrote the
pipeline down. Nothing is put in the way of others: the functions of one pipeline have an `__import__` of their own, so
that two versions of a module can run side by side, and the one that a worker had before an edit is not run after it.

A module may come in both ways, one function asking it for a class by a global and another importing it. Then it is one
module still: its source runs in the namespace that came by value, and what came by value stays.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.elements.bytecode import all_imports
from dsnb.elements.source_differences import compile_module, source_differences
from dsnb.elements.usercode import is_user_namespace, namespace

ModuleSource = tuple[str, str, bytes]
"""A module's name, its file where it was written, and what is in it."""

_SUFFIXES = (".py", ".pyc", *importlib.machinery.EXTENSION_SUFFIXES)
_PROCESS = uuid.uuid4().hex
_keeps_modules = threading.Event()
# Modules that came with pipelines and are found by name.
_received_modules: weakref.WeakSet[ModuleType] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, eq=False)
class SourceFile:
    """A module of the user's that a function imports when it runs: its file, whether or not it is imported now."""

    name: str
    path: str

    @property
    def package(self) -> str:
        """What its relative imports start from."""
        return self.name if _is_package(self.path) else self.name.rpartition(".")[0]

    def read(self) -> ModuleSource:
        """The source as it is now."""
        return self.name, self.path, Path(self.path).read_bytes()

    def __dsnb_fingerprint__(self) -> Any:
        code = compile_module(Path(self.path).read_bytes())
        return (code, *imported_files(code, self.package))

    def __dsnb_result__(self) -> Any:
        module = sys.modules.get(self.name)
        if not isinstance(module, ModuleType) or namespace(module).get("__file__") != self.path:
            return self
        differing = source_differences(module, self.path, Path(self.path).read_bytes())
        return (self.__dsnb_fingerprint__(), differing) if differing else self


@dataclass(frozen=True, slots=True, eq=False)
class ExtensionFile:
    """A compiled module of the user's that a function imports when it runs; it does not travel."""

    name: str
    path: str

    def __dsnb_fingerprint__(self) -> Any:
        return Path(self.path).read_bytes()


# One object for each file: two files that import each other would make new ones for ever.
_source_file = lru_cache(maxsize=None)(SourceFile)
_extension_file = lru_cache(maxsize=None)(ExtensionFile)


def imported_files(code: CodeType, package: str) -> Iterator[SourceFile | ExtensionFile]:
    """The files of the user's that this code imports as it runs; packages before what is in them."""
    for level, name, members in all_imports(code):
        base = _absolute(level, name, package)
        for module in (*_prefixes(base), *(f"{base}.{part}" for part in members)):
            path = _located(module)[0]
            if path:
                yield _source_file(module, path) if path.endswith(".py") else _extension_file(module, path)


def _absolute(level: int, name: str, package: str) -> str:
    """The full name of what `from ..name import` means in a module of this package."""
    if not level:
        return name
    base = ".".join(package.split(".")[: 1 - level] if level > 1 else package.split("."))
    return f"{base}.{name}" if name and base else base or name


def _prefixes(name: str) -> list[str]:
    """a.b.c imports a, a.b and a.b.c."""
    parts = name.split(".") if name else []
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _is_package(path: str) -> bool:
    return os.path.basename(path) == "__init__.py"


def _located(name: str) -> tuple[str, tuple[str, ...]]:
    """The file of a module of the user's, and where a package's modules are; nothing for a library's.

    Nothing is imported for it.
    """
    if not name or name.partition(".")[0] in sys.stdlib_module_names:
        return "", ()
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        names = namespace(module)
        file, folders = names.get("__file__"), tuple(names.get("__path__") or ())
    else:
        file, folders = _locate_by_spec(name)
    if not isinstance(file, str) or not file.endswith(_SUFFIXES) or not os.path.exists(file):
        return "", folders
    return (file if is_user_namespace({"__name__": name, "__file__": file}) else ""), folders


def _locate_by_spec(name: str) -> tuple[str | None, tuple[str, ...]]:
    parent = name.rpartition(".")[0]
    try:
        if parent:
            spec = importlib.machinery.PathFinder.find_spec(name, list(_located(parent)[1]))
        else:
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None, ()
    return (spec.origin, tuple(spec.submodule_search_locations or ())) if spec else (None, ())


def import_path() -> list[str]:
    """Where this process imports from, for others: with its working directory by its name."""
    return [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]


# ---- on a worker


def add_import_path(entries: list[str]) -> None:
    """Let this process import from these places too, after its own; what it has stays where it stands."""
    here = set(import_path())
    sys.path.extend(entry for entry in dict.fromkeys(entries) if entry not in here and os.path.exists(entry))


class ImporterReference:
    """What stands for the `__import__` of a pipeline's functions in its pickle."""

    def __init__(self, sources: tuple[ModuleSource, ...]) -> None:
        self._sources = sources

    def __reduce__(self) -> tuple[Any, ...]:
        return _importer, (self._sources, _PROCESS)


def _importer(sources: tuple[ModuleSource, ...], process: str) -> Importer | None:
    # Where the pipeline comes from, the modules themselves are at hand.
    return None if process == _PROCESS else Importer(sources)


class _Modules(dict[str, ModuleType]):
    """Modules that have been run, by name, and the lock to run them under."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()


@lru_cache(maxsize=8)
def _shared_modules(_sources: tuple[ModuleSource, ...]) -> _Modules:
    # What is imported into a process stays there: the next epoch of a job is another task, with the same sources.
    return _Modules()


class Importer:
    """Runs the sources that came with a pipeline when its functions import them; each once, as Python does.

    Attributes:
        builtins: The built-in names for all code of the pipeline.
    """

    def __init__(self, sources: tuple[ModuleSource, ...]) -> None:
        self._sources = {name: (path, text) for name, path, text in sources}
        self._packages = {prefix for name in self._sources for prefix in _prefixes(name)[:-1]}
        self._modules = _shared_modules(sources)
        self._by_value: dict[str, ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self._import}

    def add_module(self, module: ModuleType) -> None:
        """Learn of a module that came by value."""
        if self._provides(module.__name__):
            if not self._by_value:
                self._modules = _Modules()  # with values of this pipeline's own
            self._by_value[module.__name__] = module

    def _import(
        self,
        name: str,
        names: dict[str, Any] | None = None,
        local: Any = None,
        fromlist: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> Any:
        """What the import statement calls."""
        full = _absolute(level, name, str((names or {}).get("__package__") or ""))
        with self._modules.lock:
            loaded = [self._load(prefix) for prefix in _prefixes(full) if self._provides(prefix)]
            if self._provides(full):
                for part in self._requested_names(loaded[-1], fromlist or ()):
                    self._import_part(loaded[-1], f"{full}.{part}")
                return loaded[-1] if fromlist else loaded[0]
        return builtins.__import__(name, names, local, fromlist or (), level)

    def _import_part(self, module: ModuleType, name: str) -> None:
        """Have a submodule that may be meant by `from module import name`; one that is compiled did not come along."""
        part = name.rpartition(".")[2]
        if hasattr(module, part):
            return
        if self._provides(name):
            self._load(name)
        elif hasattr(module, "__path__"):
            with suppress(ModuleNotFoundError):
                setattr(module, part, importlib.import_module(name))

    def _provides(self, name: str) -> bool:
        return name in self._sources or name in self._packages

    def _requested_names(self, module: ModuleType, fromlist: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(getattr(module, "__all__", ())) if "*" in fromlist else tuple(fromlist)

    def _load(self, name: str) -> ModuleType:
        module = self._modules.get(name)
        return module if module is not None else self._run(name)

    def _run(self, name: str) -> ModuleType:
        path, text = self._sources.get(name, ("", b""))
        module = self._modules[name] = self._fresh(name, path)
        code = compile(text, path or f"<{name}>", "exec", dont_inherit=True)
        names = vars(module)
        try:
            with _registered_while_running(module):
                # The user's own code, in the user's own pipeline.
                exec(code, names, _PresetNamespace(names) if name in self._by_value else names)  # noqa: S102
        except BaseException:
            del self._modules[name]
            raise
        package, _, last = name.rpartition(".")
        if package:
            setattr(self._load(package), last, module)
        return module

    def _fresh(self, name: str, path: str) -> ModuleType:
        module = self._by_value.get(name) or ModuleType(name)
        module.__file__ = path or None
        vars(module)["__builtins__"] = self.builtins
        module.__package__ = name.rpartition(".")[0]
        if name in self._packages or _is_package(path):
            module.__package__ = name
            module.__path__ = [os.path.dirname(path)] if path else []
        return module


class _PresetNamespace(dict[str, Any]):
    """The local names of a module whose source runs in a namespace that has values already: those stay."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__()
        self._names = names
        self._kept = frozenset(names)

    def __missing__(self, name: str) -> Any:
        return self._names[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._kept:
            self._names[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._kept:
            del self._names[name]


def make_function(importer: Importer | None, code: CodeType, names: dict[str, Any], *rest: Any) -> Callable[..., Any]:
    """A function that came by value, importing what came with it; `names` are its globals."""
    names["__builtins__"] = builtins if importer is None else importer.builtins
    return FunctionType(code, names, *rest)


def keep_received_modules() -> None:
    """Let modules that came with pipelines stay to be found by name, the newest of each: this process is a worker's."""
    _keeps_modules.set()


@contextmanager
def _registered_while_running(module: ModuleType) -> Iterator[None]:
    """Have a module found by name while it runs: a dataclass, for one, looks for its own. Never in another's place."""
    name = module.__name__
    before = sys.modules.get(name)
    if before is not None and before not in _received_modules:
        yield
        return
    sys.modules[name] = module
    _received_modules.add(module)
    done = False
    try:
        yield
        done = _keeps_modules.is_set()
    finally:
        if not done:
            _restore_module(name, before)


def _restore_module(name: str, before: ModuleType | None) -> None:
    if before is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = before

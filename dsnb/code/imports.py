"""User modules that functions import *when they run*: finding their sources, and running these on a worker.

Theory of operation. A module that a function reaches through a global is pickled with the values that it has in the
kernel (`pickling`). A module that a function imports in its body has no values yet; only its source identifies it. So
the pipeline carries the sources of such modules and of all user modules that they import. In each process except the
one that serialised the pipeline, `import helpers` finds these sources first. Other code is not affected: the functions
of one pipeline have their own `__import__`. So two versions of a module can run in one process, and after an edit the
worker does not run the old version.

A module may arrive both ways, if one function reads a class of it through a global and another imports it. It is still
one module: its source runs in the namespace that was pickled, and the pickled values are not overwritten.
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

import msgspec

from dsnb.code.bytecode import all_imports
from dsnb.code.source_differences import compile_module, source_differences
from dsnb.code.usercode import is_user_namespace, namespace

ModuleSource = tuple[str, str, bytes]
"""A module's name, the path of its file on the machine that serialised it, and the file's contents."""

_SUFFIXES = (".py", ".pyc", *importlib.machinery.EXTENSION_SUFFIXES)
_PROCESS = uuid.uuid4().hex
_keeps_modules = threading.Event()
# Modules that were received with pipelines and are registered in `sys.modules`.
_received_modules: weakref.WeakSet[ModuleType] = weakref.WeakSet()


class SourceFile(msgspec.Struct, frozen=True, eq=False):
    """The source file of a user module that a function imports when it runs, whether or not it is imported now."""

    name: str
    path: str

    @property
    def package(self) -> str:
        """The package that its relative imports refer to."""
        return self.name if _is_package(self.path) else self.name.rpartition(".")[0]

    def read(self) -> ModuleSource:
        """The name, the path and the file's present contents."""
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


class ExtensionFile(msgspec.Struct, frozen=True, eq=False):
    """The file of a user's extension module that a function imports when it runs; it is not sent to workers."""

    name: str
    path: str

    def __dsnb_fingerprint__(self) -> Any:
        return Path(self.path).read_bytes()


# One object for each file: otherwise the walk over two files that import each other would never end.
_source_file = lru_cache(maxsize=None)(SourceFile)
_extension_file = lru_cache(maxsize=None)(ExtensionFile)


def imported_files(code: CodeType, package: str) -> Iterator[SourceFile | ExtensionFile]:
    """The user's files that this code imports when it runs; packages before their submodules."""
    for level, name, members in all_imports(code):
        base = _absolute(level, name, package)
        for module in (*_prefixes(base), *(f"{base}.{part}" for part in members)):
            path = _located(module)[0]
            if path:
                yield _source_file(module, path) if path.endswith(".py") else _extension_file(module, path)


def _absolute(level: int, name: str, package: str) -> str:
    """The absolute name of the module that `from ..name import` means in a module of `package`."""
    if not level:
        return name
    base = ".".join(package.split(".")[: 1 - level] if level > 1 else package.split("."))
    return f"{base}.{name}" if name and base else base or name


def _prefixes(name: str) -> list[str]:
    """The modules that `import a.b.c` imports: a, a.b and a.b.c."""
    parts = name.split(".") if name else []
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _is_package(path: str) -> bool:
    return os.path.basename(path) == "__init__.py"


def _located(name: str) -> tuple[str, tuple[str, ...]]:
    """The file of a user module (empty for a library's) and the folders of a package's submodules.

    Imports nothing itself.
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
    """This process's `sys.path` for use in other processes: all entries are absolute paths."""
    return [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]


# ---- on a worker


def add_import_path(entries: list[str]) -> None:
    """Append existing paths to this process's `sys.path`, after its own entries, which keep their order."""
    here = set(import_path())
    sys.path.extend(entry for entry in dict.fromkeys(entries) if entry not in here and os.path.exists(entry))


class ImporterReference:
    """Replaces the `Importer` of a pipeline's functions in its pickle."""

    def __init__(self, sources: tuple[ModuleSource, ...]) -> None:
        self._sources = sources

    def __reduce__(self) -> tuple[Any, ...]:
        return _importer, (self._sources, _PROCESS)


def _importer(sources: tuple[ModuleSource, ...], process: str) -> Importer | None:
    # The process that serialised the pipeline uses its own modules.
    return None if process == _PROCESS else Importer(sources)


class _Modules(dict[str, ModuleType]):
    """Modules that have run, by name, and the lock to hold while one runs."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()


@lru_cache(maxsize=8)
def _shared_modules(_sources: tuple[ModuleSource, ...]) -> _Modules:
    # Cached, because the next epoch of a job is a new task with the same sources: a module must run once in a process.
    return _Modules()


class Importer:
    """Runs the sources received with a pipeline when its functions import them, each once, as Python does.

    Args:
        sources: The modules' sources.

    Attributes:
        builtins: The `__builtins__` of all code of the pipeline, with an `__import__` that finds these sources.
    """

    def __init__(self, sources: tuple[ModuleSource, ...]) -> None:
        self._sources = {name: (path, text) for name, path, text in sources}
        self._packages = {prefix for name in self._sources for prefix in _prefixes(name)[:-1]}
        self._modules = _shared_modules(sources)
        self._by_value: dict[str, ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self._import}

    def add_module(self, module: ModuleType) -> None:
        """Add a module that was pickled by value, in whose namespace its source must run."""
        if self._provides(module.__name__):
            if not self._by_value:
                # Not the shared modules: the pickled values belong to this pipeline only.
                self._modules = _Modules()
            self._by_value[module.__name__] = module

    def _import(
        self,
        name: str,
        names: dict[str, Any] | None = None,
        local: Any = None,
        fromlist: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> Any:
        """The `__import__` of the pipeline's code: its own sources first, then Python's import."""
        full = _absolute(level, name, str((names or {}).get("__package__") or ""))
        # Under the lock, so that no other thread gets a module that has run only in part.
        with self._modules.lock:
            loaded = [self._load(prefix) for prefix in _prefixes(full) if self._provides(prefix)]
            if self._provides(full):
                for part in self._requested_names(loaded[-1], fromlist or ()):
                    self._import_part(loaded[-1], f"{full}.{part}")
                return loaded[-1] if fromlist else loaded[0]
        return builtins.__import__(name, names, local, fromlist or (), level)

    def _import_part(self, module: ModuleType, name: str) -> None:
        """Import the submodule that `from module import name` may mean.

        An extension module is not among the sources, so Python's own import must find it.
        """
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
        # Registered before it runs, as Python does, for circular imports.
        module = self._modules[name] = self._fresh(name, path)
        code = compile(text, path or f"<{name}>", "exec", dont_inherit=True)
        names = vars(module)
        try:
            with _registered_while_running(module):
                # S102 is safe here: this is the user's code, run for the user's own pipeline.
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
    """The local names of a module whose source runs in a namespace with pickled values, which it cannot overwrite."""

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
    """Restore a function that was pickled by value; it imports through `importer`, and `names` are its globals."""
    names["__builtins__"] = builtins if importer is None else importer.builtins
    return FunctionType(code, names, *rest)


def keep_received_modules() -> None:
    """Keep received modules in `sys.modules` after they have run, the newest of each name; for worker processes."""
    _keeps_modules.set()


@contextmanager
def _registered_while_running(module: ModuleType) -> Iterator[None]:
    """Register a module in `sys.modules` while it runs: the dataclass decorator, for one, looks its module up there.

    Never replaces a module that was not received with a pipeline.
    """
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

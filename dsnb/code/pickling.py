"""Serialisation of pipelines and errors: cloudpickle, by value for user code, with big arrays stored apart.

Theory of operation. This module adds four things to cloudpickle.

* *User modules.* A cell does `import helpers`, a function calls `helpers.prep(x)`, and the worker has no `helpers`.
  cloudpickle would send the whole module, including a lock, a connection or a model that only another of its functions
  needs. We send only the names that the pickled functions read. These are known only after all functions have been
  pickled, and a function of a module may read more names; so each module is written as an empty module first, and its
  names are written at the end, in batches, until a batch adds no new names (`_PendingNames`).
* *User classes* are restored as new classes, exceptions as themselves: see `pickled_classes`.
* *Imports inside functions* find the sources that are sent with the pipeline: see `imports`.
* *Big arrays.* A persistent id replaces each array above `BLOB_BYTES`.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import cloudpickle as _cloudpickle
import numpy as np

from dsnb.code.fingerprint.parts import encode_plain
from dsnb.code.imports import Importer, ImporterReference, ModuleSource, make_function
from dsnb.code.pickled_classes import collecting_classes, reduce_class, reduce_error
from dsnb.code.pipeline_classes import PipelineClasses
from dsnb.code.references import singledispatch_registry, variables
from dsnb.code.usercode import is_user_module, is_user_namespace, namespace, user_modules
from dsnb.elements.data_classes import note_class

BLOB_BYTES = 1 << 20
"""An array above this size is stored as a blob instead of in the pickle."""

_CLASSES = "classes"
_LRU_CACHE_TYPE = functools._lru_cache_wrapper
_NUMERIC = frozenset("biufcmM?")
# Names that a module's functions need for relative imports and to find their files; an empty module has them at once.
_EMPTY_MODULE_NAMES = ("__name__", "__package__", "__path__", "__file__")
# Names that the import system sets in a module. They are not sent: no import system loads the restored module.
_IMPORT_SYSTEM_NAMES = {"__builtins__", "__cached__", "__loader__", "__spec__", "__doc__", *_EMPTY_MODULE_NAMES}

cloudpickle: Any = _cloudpickle  # Any: cloudpickle has no annotations

# cloudpickle's registry of modules to send by value is global to the process.
_registry_lock = threading.RLock()


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    # cloudpickle 3.1.3 and later replace the name of the file, from which tracebacks take the cell and its source.
    _, arguments, *_ = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code_in_file, (arguments, code.co_filename)


class Pickler(_cloudpickle.Pickler):
    """Pickles one graph.

    Args:
        file: Where to write the pickle.
        store_blob: Called with each big array; its result replaces the array in the pickle. None to keep all arrays in.
        by_name: Whether a user's exception may be restored as the class with its name in the restoring process.
        sources: The modules that functions import when they run.
    """

    dispatch_table: ClassVar = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)  # type: ignore[misc]  # cloudpickle does the same

    def __init__(
        self,
        file: BytesIO,
        store_blob: Callable[[np.ndarray[Any, Any]], Any] | None = None,
        *,
        by_name: bool = False,
        sources: tuple[ModuleSource, ...] = (),
    ) -> None:
        super().__init__(file, protocol=5)  # type: ignore[no-untyped-call]
        self._store_blob = store_blob
        self._by_name = by_name
        self._importer_reference = ImporterReference(sources) if sources else None
        self._imported = {name for name, _, _ in sources}
        self._modules = _SentModules()
        self._names: dict[int, _ModuleNamespace] = {}

    def dump_graph(self, value: Any) -> None:
        """Write a value, followed by the names that its functions read from user modules."""
        with _user_modules_by_value():
            self.dump((value, _PendingNames()))  # type: ignore[no-untyped-call]

    def persistent_id(self, value: Any) -> Any:
        """The id that replaces a big array or the pipeline's classes; None for other objects.

        A memory map is pickled as an ordinary array of its contents.
        """
        if type(value) is PipelineClasses:
            return _CLASSES
        if type(value) is np.ndarray or type(value) is np.memmap:
            if self._store_blob is not None and value.nbytes > BLOB_BYTES and value.dtype.kind in _NUMERIC:
                return self._store_blob(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        """The reduction of user code and of a few types that cloudpickle cannot handle; else cloudpickle's."""
        if isinstance(value, FunctionType):
            return self._reduce_function(value)
        if isinstance(value, ModuleType) and is_user_module(value):
            self._modules.note_written_module(value)
            return _make_empty_module, (
                self._importer_reference,
                {key: namespace(value)[key] for key in _EMPTY_MODULE_NAMES if key in namespace(value)},
            )
        if value is dataclasses.MISSING:
            # dataclasses compares this sentinel by identity. A copy of it would be taken for a default value.
            return getattr, (dataclasses, "MISSING")
        if isinstance(value, _PendingNames):
            # Pickling these names may reach new functions that read more names: then another batch follows this one.
            filling = self._modules.pop_unwritten()
            return _fill_modules, (filling, _PendingNames() if filling else None)
        if isinstance(value, _LRU_CACHE_TYPE) and is_user_namespace(getattr(value.__wrapped__, "__globals__", {})):
            return _rebuild_lru_cache, (value.cache_parameters(), value.__wrapped__)
        if type(value) is functools.cached_property:
            # In Python 3.11 it holds a lock, which cannot be pickled.
            return _cached_property, (value.func, value.attrname)
        if isinstance(value, TextIOWrapper):
            return _reduce_text_file(value)
        if isinstance(value, type):
            return self._reduce_class(value)
        if isinstance(value, BaseException):
            return reduce_error(value)
        return self._reduce_with_cloudpickle(value)

    def _reduce_function(self, function: FunctionType) -> Any:
        registry = singledispatch_registry(function)
        if registry and is_user_namespace(registry[object].__globals__):
            return _rebuild_singledispatch, (registry,)
        self._modules.note_function(function)
        reduced = self._reduce_with_cloudpickle(function)
        if not isinstance(reduced, tuple):
            return reduced
        self._note_member(function)
        make, (code, names, *more), *rest = reduced
        home = self._defining_module(function)
        # The functions of one module must share its namespace, not get one dict of globals each as cloudpickle does.
        names = names if home is None else self._names.setdefault(id(home), _ModuleNamespace(home))
        if self._importer_reference is None:
            return make, (code, names, *more), *rest
        return make_function, (self._importer_reference, code, names, *more), *rest

    def _note_member(self, value: type | FunctionType) -> None:
        """Note a function or class that other code may also import from its module: both must get the same object."""
        module = sys.modules.get(value.__module__) if value.__module__ in self._imported else None
        if module is not None and namespace(module).get(value.__name__) is value:
            self._modules.note_module(module, value.__name__)

    def _defining_module(self, function: FunctionType) -> ModuleType | None:
        """The module whose namespace is the function's globals, if any: the function's assignments must show there."""
        module = sys.modules.get(str(function.__globals__.get("__name__")))
        if module is None or module.__name__ == "__main__" or namespace(module) is not function.__globals__:
            return None
        self._modules.note_module(module)
        return module

    def _reduce_class(self, cls: type) -> Any:
        reduced = self._reduce_with_cloudpickle(cls)
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        note_class(cls)
        self._note_member(cls)
        return reduce_class(cls, reduced, by_name=self._by_name)

    def _reduce_with_cloudpickle(self, value: Any) -> Any:
        return super().reducer_override(value)  # type: ignore[no-untyped-call]


class Unpickler(pickle.Unpickler):
    """Restores what `Pickler` wrote.

    Args:
        file: Where to read the pickle.
        load_blob: Returns the array for a result of `store_blob`; None if there are no blobs.
    """

    def __init__(self, file: BytesIO, load_blob: Callable[[Any], np.ndarray[Any, Any]] | None = None) -> None:
        super().__init__(file)
        self._load_blob = load_blob
        self._classes = PipelineClasses()

    def persistent_load(self, pid: Any) -> Any:
        """The object that an id of `Pickler.persistent_id` replaces: a big array, or the classes in this pickle."""
        if pid == _CLASSES:
            return self._classes
        if self._load_blob is None:
            raise pickle.UnpicklingError("an array is missing")
        return self._load_blob(pid)

    def load_graph(self) -> Any:
        """The value that `dump_graph` wrote; its user modules have all their names when this returns."""
        with collecting_classes(self._classes):
            value, _ = self.load()
        return value


def dump_error(error: BaseException) -> bytes:
    """An error as bytes, with a class of the user by value."""
    if (
        type(error).__module__ == "builtins"
        and encode_plain(error.args) is not None
        and not vars(error).keys() - {"__notes__"}
    ):
        return pickle.dumps((error, None), 5)  # fast path: nearly all errors, and each element may have one
    file = BytesIO()
    Pickler(file, by_name=True).dump_graph(error)
    return file.getvalue()


def load_error(data: bytes) -> Any:
    """The error that `dump_error` wrote, as an instance of this process's class of that name if there is one."""
    return Unpickler(BytesIO(data)).load_graph()


class _SentModules:
    """The names of user modules that must be sent, and which of them have been written."""

    def __init__(self) -> None:
        self._wanted: dict[int, tuple[ModuleType, dict[str, None]]] = {}
        self._written: set[tuple[int, str]] = set()

    def note_function(self, function: FunctionType) -> None:
        """Note the names that a function reads from modules; all names if it uses a module as a value."""
        for variable in variables(function):
            for module, name in variable.module_lookups:
                self._want(module, name)
            if isinstance(variable.value, ModuleType) and is_user_module(variable.value):
                self._want(variable.value, *namespace(variable.value))

    def note_module(self, module: ModuleType, *names: str) -> None:
        """Note a module that must be sent for a function, with these names and those noted otherwise."""
        self._want(module, *names)

    def note_written_module(self, module: ModuleType) -> None:
        """Note a module that is being written. If no function reads its names, it serves as a value: note all names."""
        if id(module) not in self._wanted:
            self._want(module, *namespace(module))

    def pop_unwritten(self) -> list[tuple[ModuleType, dict[str, Any]]]:
        """The noted names, with their values, that no earlier call returned; by module."""
        filling = []
        for number, (module, names) in self._wanted.items():
            new = [name for name in names if (number, name) not in self._written]
            self._written.update((number, name) for name in new)
            if new:
                filling.append((module, {name: namespace(module)[name] for name in new}))
        return filling

    def _want(self, module: ModuleType, *names: str) -> None:
        _, wanted = self._wanted.setdefault(id(module), (module, {}))
        wanted.update(dict.fromkeys(name for name in names if name not in _IMPORT_SYSTEM_NAMES))


class _ModuleNamespace:
    """Replaces the namespace of a module in the pickle."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return vars, (self._module,)


class _PendingNames:
    """Replaces, in the pickle, the module names still unwritten at the time when the pickler reaches this object."""


def _code_in_file(arguments: tuple[Any, ...], filename: str) -> CodeType:
    return CodeType(*arguments).replace(co_filename=filename)


def _make_empty_module(importer: Importer | None, names: dict[str, Any]) -> ModuleType:
    module = ModuleType(names["__name__"])
    namespace(module).update(names)
    if importer is not None:
        importer.add_module(module)
    return module


def _rebuild_singledispatch(registry: dict[type, Callable[..., Any]]) -> Any:
    function = functools.singledispatch(registry.pop(object))
    for cls, handler in registry.items():
        function.register(cls, handler)
    return function


def _rebuild_lru_cache(parameters: dict[str, Any], function: Callable[..., Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _fill_modules(filling: list[tuple[ModuleType, dict[str, Any]]], _following: object) -> None:
    for module, names in filling:
        namespace(module).update(names)


def _reduce_text_file(file: TextIOWrapper) -> tuple[Any, ...]:
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    # cloudpickle would read the file to its end and pickle the text.
    raise pickle.PicklingError("an open file cannot be pickled")


@contextmanager
def _user_modules_by_value() -> Iterator[None]:
    """Register the user's modules with cloudpickle to be pickled by value, during one dump."""
    with _registry_lock:
        known = cloudpickle.list_registry_pickle_by_value()
        modules = [module for module in user_modules() if module.__name__ not in known]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)

"""`remembered`: a function whose results are stored, and reused as long as nothing that they depend on has changed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import os
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from dsnb import errors
from dsnb.arguments import WrongCallError, anything, checked, each, instance, optional, path, short_repr, text
from dsnb.cache.opened_files import FileState, OpenedFiles, add_file_states, first_change, track_opened_files
from dsnb.cache.results import outputs, serializers
from dsnb.cache.results.call_lock import call_lock
from dsnb.cache.results.explain import CallNote, Explanation, explain_miss, make_note
from dsnb.cache.results.index import CacheEntry
from dsnb.cache.results.key import DeclaredInputs, Key, KeyMaker, path_tuple
from dsnb.cache.results.model_storage import ModelStorage
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.errors import (
    CacheWarning,
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_OUTPUTS = "outputs.json"
_FILES = "files.json"
_COMPARED = 200  # how many earlier calls an explanation compares with
_MISSING = object()


class _CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call.

    Attributes:
        value: The function's return value.
        printed: What the function printed and displayed.
        files: The files that datasets opened during the call.
        seconds: How long the call took.
    """

    value: Any
    printed: list[outputs.Output]
    files: tuple[FileState, ...]
    seconds: float


class _StoredResult:
    """A result in the form in which the cache stores it, with the printed output and the files that were read."""

    def __init__(self, parts: serializers.ResultParts, result: _CallResult) -> None:
        self._parts = parts
        self._result = result

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        serializers.write_parts(self._parts, directory, model_storage)
        for name, content in ((_OUTPUTS, self._result.printed), (_FILES, self._result.files)):
            if content:
                (directory / name).write_text(json.dumps(content))

    @classmethod
    def from_cache(cls, node_name: str, directory: Path, model_storage: ModelStorage, output_fingerprint: str) -> Any:
        """The result alone, without its output. Pickles are not read this way."""
        del output_fingerprint
        return serializers.read_result(directory, model_storage, name=node_name, pickles=False)


class Remembered(Generic[P, R]):
    """A function whose results are stored; made by `remembered`."""

    def __init__(
        self,
        function: Callable[P, R],
        named: DeclaredInputs,
        cache: LocalTrainingCache | None,
        *,
        model_storage: ModelStorage | None,
        pickles: bool,
        replay_output: bool = True,
    ) -> None:
        _check_function(function)
        functools.update_wrapper(self, function)
        self._function = function
        self._key_maker = KeyMaker(function, named)
        self._cache_argument = cache
        self._model_storage = model_storage
        self._pickles = pickles
        self._replay_output = replay_output
        self._last: Explanation | Callable[[], Explanation] | None = None

    @property
    def cache(self) -> LocalTrainingCache:
        """The cache that stores the results."""
        return self._cache_argument or default_cache()

    def __repr__(self) -> str:
        return f"<remembered {self._key_maker.name}>"

    def __getstate__(self) -> dict[str, Any]:
        # Leave out the last call: its explanation may be a closure over this process's cache.
        return {**self.__dict__, "_last": None}

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __dsnb_fingerprint__(self) -> Any:
        # The result of a function that calls this one depends on everything that this function's result depends on.
        named = [(part.path, part.digest) for part in self._key_maker.declared.components()]
        return self._function if self._key_maker.declared == DeclaredInputs() else (self._function, named)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's result: from the cache, replaying what it printed, or else computed.

        Identical calls at the same time, in threads of this process or in other processes, are computed once; the
        others wait.
        """
        cache = self._cache()
        if cache is None:
            return self._function(*args, **kwargs)
        key = self._key(args, kwargs)
        found, why = self._look_up(cache, key)
        if found is not _MISSING:
            return found  # type: ignore[no-any-return]
        with call_lock(cache.locks, key.digest, key.call) as waited:
            if waited:
                # Look again: the call that held the lock has probably stored this result.
                found, why = self._look_up(cache, key)
                if found is not _MISSING:
                    return found  # type: ignore[no-any-return]
            self._last = self._explain_later(cache, key, self._key_maker.codes(args, kwargs), why)
            return self._compute(cache, key, args, kwargs)

    @checked(args=anything, kwargs=anything)
    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Why a call is computed, if it is: which function changed at which line, which argument, which package.

        The call is compared with the most similar stored call, preferably one with the same arguments. Nothing is run.

        Args:
            args: The call's arguments. Without any, the last call of this function in this process is explained, even
                if the function has no parameters.
            kwargs: The call's keyword arguments.

        Raises:
            FailedPreconditionError: no arguments were given, and the function was not called in this process yet.

        Example:
            >>> train.explain(lr=0.1)  # doctest: +SKIP
            train(lr=0.1): computed
              train, line 3: `return x * SCALE` is now `return x / SCALE`
        """
        if args or kwargs:
            try:
                inspect.signature(self._function).bind(*args, **kwargs)
            except TypeError as error:
                raise WrongCallError(
                    f"`args` of explain() do not go with {self._key_maker.name}: {error}",
                    hint=f"pass the arguments of the call to explain: {inspect.signature(self._function)}",
                ) from None
            return self._explain_call(args, kwargs)
        if self._last is None:
            raise FailedPreconditionError(
                f"{self._key_maker.name} has not been called here yet",
                hint="call it, or pass the arguments of the call to explain",
            )
        if not isinstance(self._last, Explanation):
            self._last = self._last()
        return self._last

    def _explain_later(
        self, cache: LocalTrainingCache, key: Key, codes: Mapping[str, CodeType], why: str
    ) -> Explanation | Callable[[], Explanation]:
        """The explanation of a miss, made when it is wanted; by then the call's own note is stored."""
        if why:
            return Explanation(call=key.call, hit=False, reasons=(why,), against=key.call)
        assert cache.store is not None
        try:
            # Read the note now: later it may be the one that this very call has stored.
            with cache.store.reading() as index:
                same = index.note_of(_entry_key(key))
        except DsnbError as error:
            logger.warning("the stored calls of %s could not be read: %s", self._key_maker.name, error)
            same = None
        if same is not None:
            return lambda: explain_miss(key, [CallNote.from_bytes(same)], codes)
        return lambda: explain_miss(key, [note for note in self._notes(cache) if note.digest != key.digest], codes)

    def _explain_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
        key = self._key(args, kwargs)
        cache = self._cache()
        if cache is None or cache.store is None:
            return Explanation(call=key.call, hit=False)
        with contextlib.suppress(DataLossError), cache.store.leased(_entry_key(key)) as leased:
            if leased is not None:
                change = first_change(_read_opened_files(leased[1]))
                return Explanation(call=key.call, hit=not change, reasons=(change,) if change else (), against=key.call)
        return explain_miss(key, self._notes(cache), self._key_maker.codes(args, kwargs))

    @checked()
    def forget(self) -> None:
        """Remove all stored results of this function, of all its versions."""
        cache = self._cache()
        if cache is not None and cache.store is not None and cache.store.writable:
            with cache.store.reading() as index:
                keys = index.keys_of(self._name)
            cache.store.drop(keys)

    # ------------------------------------------------------------------------------------------------------------ parts

    @property
    def _name(self) -> str:
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def _cache(self) -> LocalTrainingCache | None:
        """The cache to use; None if there is none."""
        try:
            cache = self.cache
        except DsnbError as error:
            self._warn(f"{self._key_maker.name} is computed each time: {error}")
            return None
        return None if cache.store is None else cache

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        key = self._key_maker.key(args, kwargs)
        if key.unhashable:
            raise InvalidArgumentError(
                f"{self._key_maker.name} cannot be remembered: {'; '.join(key.unhashable)}",
                did="it was not called",
                hint="pass a path, a seed or a function instead; or name an argument that does not count in `ignore`",
            )
        return key

    def _look_up(self, cache: LocalTrainingCache, key: Key) -> tuple[Any, str]:
        """The stored result, or `_MISSING`; and why a stored result is not used, if that is known."""
        assert cache.store is not None
        try:
            with cache.store.leased(_entry_key(key)) as leased:
                if leased is None:
                    return _MISSING, ""
                directory = leased[1]
                files = _read_opened_files(directory)
                if change := first_change(files):
                    return _MISSING, change
                value = serializers.read_result(
                    directory, self._storage(cache), name=self._key_maker.name, pickles=self._pickles
                )
                printed = json.loads((directory / _OUTPUTS).read_text()) if (directory / _OUTPUTS).exists() else []
        except Exception as error:  # noqa: BLE001 - a broken cache must not break a training: the function runs
            self._warn(f"the result of {key.call} could not be read from the cache, and is computed: {error}")
            return _MISSING, ""
        add_file_states((*key.files, *files))
        self._last = Explanation(call=key.call, hit=True)
        if self._replay_output:
            outputs.replay(f"{key.call}, from the cache:", printed)
        return value, ""

    def _notes(self, cache: LocalTrainingCache) -> list[CallNote]:
        assert cache.store is not None
        with cache.store.reading() as index:
            return [CallNote.from_bytes(data) for data in index.notes_of(self._name, _COMPARED)]

    def _compute(self, cache: LocalTrainingCache, key: Key, args: Any, kwargs: Any) -> R:
        opened = OpenedFiles()
        began = time.perf_counter()
        with outputs.capture_output() as printed, track_opened_files(opened):
            value = self._function(*args, **kwargs)
        seconds = time.perf_counter() - began
        opened.forget_removed()
        files = opened.states("strict")
        add_file_states((*key.files, *files))
        # Files declared in `files` count by content, which is part of the key already.
        mine = tuple(note for note in files if note[1] not in self._key_maker.declared.absolute_paths)
        made = _CallResult(value=value, printed=printed, files=mine, seconds=seconds)
        try:
            self._store_result(cache, key, args, kwargs, made)
        except Exception as error:  # noqa: BLE001 - whatever fails to be stored, the caller gets the result
            self._warn(f"the result of {key.call} is not kept: {error}")
        return value

    def _store_result(self, cache: LocalTrainingCache, key: Key, args: Any, kwargs: Any, result: _CallResult) -> None:
        codes = self._key_maker.codes(args, kwargs)
        self._check_unchanged(key, self._key_maker.key(args, kwargs), codes)
        if change := first_change(result.files):
            raise FailedPreconditionError(
                change,
                hint="let nothing write to the files while the function reads them; what workers on other hosts read "
                "must be on a file system that this host shares",
            )
        name = _entry_key(key)
        try:
            stored = _StoredResult(serializers.split_into_parts(result.value, pickles=self._pickles), result)
        except serializers.NotSerializableError as error:
            note = make_note(key, codes, lost=error.what)
            cache.keep(
                CacheEntry(key=name, output=name, name=self._name, note=note.to_bytes()), None, self._storage(cache)
            )
            raise
        note = make_note(key, codes)
        entry = CacheEntry(key=name, output=name, name=self._name, note=note.to_bytes())
        if not cache.keep(entry, stored, self._storage(cache), result.seconds) and cache.store and cache.store.writable:
            raise ResourceExhaustedError(
                "it is larger than the cache, or could not be written",
                hint="see the log; DSNB_MAX_CACHE_SIZE and `max_size` are the limit in MiB",
            )

    @staticmethod
    def _check_unchanged(key: Key, after: Key, codes: Mapping[str, CodeType]) -> None:
        if after.digest != key.digest:
            reasons = explain_miss(after, [make_note(key, codes)], codes).reasons
            raise FailedPreconditionError(
                f"the call itself changed what its result follows from: {'; '.join(reasons)}",
                hint="let it not write to its arguments or to globals: the next call would have another key",
            )

    def _storage(self, cache: LocalTrainingCache) -> ModelStorage:
        # Next to the cache and not in it: a restored resource is wanted, and must not be evicted to free space.
        return self._model_storage or ModelStorage(cache.directory.with_name(cache.directory.name + "-resources"))

    @staticmethod
    def _warn(text: str) -> None:
        errors.warn(text, CacheWarning)


def _read_opened_files(directory: Path) -> list[FileState]:
    """The states of the files that were opened for a stored result."""
    path = directory / _FILES
    return [(how, name, state) for how, name, state in json.loads(path.read_text())] if path.exists() else []


def _entry_key(key: Key) -> str:
    return f"remembered {key.digest}"


def _check_function(function: Any) -> None:
    if not callable(function) or isinstance(function, type) or not hasattr(function, "__qualname__"):
        raise InvalidArgumentError(
            f"`function` is {short_repr(function)} ({type(function).__name__})",
            hint="write @remembered above a function",
        )
    if isinstance(function, staticmethod | classmethod):
        raise InvalidArgumentError(
            f"`function`: @remembered stands above @{type(function).__name__}",
            hint="write it below, next to the function",
        )
    try:
        inspect.signature(function)
    except ValueError as error:
        raise InvalidArgumentError(
            f"`function`: {function.__qualname__} has arguments that cannot be inspected",
            hint="write a function that calls it",
        ) from error
    for name, is_such in (
        ("a generator", inspect.isgeneratorfunction),
        ("a coroutine", inspect.iscoroutinefunction),
        ("an asynchronous generator", inspect.isasyncgenfunction),
    ):
        if is_such(function):
            raise InvalidArgumentError(
                f"`function`: {function.__name__} is {name}, which can be read only once",
                hint="return a list, or an array",
            )


# ---------------------------------------------------------------------------------------------------- the default cache

_default: dict[tuple[str | None, ...], LocalTrainingCache] = {}
_default_lock = threading.Lock()


def default_cache() -> LocalTrainingCache:
    """The cache that the environment variables describe now; one object for each combination of their values."""
    names = ("DSNB_CACHE_DIRECTORY", "DSNB_CACHE_NAME", "DSNB_MAX_CACHE_SIZE", "XDG_CACHE_HOME")
    described = (*map(os.environ.get, names), os.getcwd())
    with _default_lock:
        if described not in _default:
            _default[described] = LocalTrainingCache()
        return _default[described]


def close_default_caches() -> None:
    """Close the caches that `default_cache` opened; each opens again when it is used."""
    with _default_lock:
        for cache in _default.values():
            cache.close()


# ------------------------------------------------------------------------------------------------------- the decorator


_names = each(text, 'pass a list of names, as in ["scipy"]')


@overload
def remembered(function: Callable[P, R], /) -> Remembered[P, R]: ...
@overload
def remembered(
    *,
    cache: LocalTrainingCache | None = None,
    packages: Iterable[str] = (),
    files: Iterable[str | os.PathLike[str]] = (),
    env: Iterable[str] = (),
    ignore: Iterable[str] = (),
    version: Any = None,
    model_storage: ModelStorage | None = None,
    pickles: bool = False,
    replay_output: bool = True,
) -> Callable[[Callable[P, R]], Remembered[P, R]]: ...


@checked(
    function=anything,
    cache=optional(instance(LocalTrainingCache, hint="pass dsnb.cache.LocalTrainingCache(...), or leave it out")),
    packages=_names,
    files=each(path, 'pass a list of paths, as in ["settings.yaml"]'),
    env=_names,
    ignore=_names,
    version=anything,
    model_storage=optional(instance(ModelStorage, hint="pass dsnb.cache.ModelStorage(...), or leave it out")),
)
def remembered(
    function: Any = None,
    /,
    *,
    cache: LocalTrainingCache | None = None,
    packages: Iterable[str] = (),
    files: Iterable[str | os.PathLike[str]] = (),
    env: Iterable[str] = (),
    ignore: Iterable[str] = (),
    version: Any = None,
    model_storage: ModelStorage | None = None,
    pickles: bool = False,
    replay_output: bool = True,
) -> Any:
    """Store a function's results and reuse them, in later kernels too, until something that they depend on changes.

    A result depends on the function and all user code that it reaches (other functions, classes, globals, helper
    modules), on the arguments (arrays by content, datasets by their pipeline and the files that they read), and on the
    versions of the packages that it uses. If all of these are the same as in an earlier call, the function is not run:
    its result is returned, and what it printed and displayed is shown again below a line that says so. Identical calls
    at the same time, in threads or in processes, are computed once. `explain()` says why a call was computed.

    Other dependencies must be declared: files that the function opens without a dataset, and environment variables.
    A function that draws random numbers should take a seed.

    Args:
        function: The function, if the decorator is used without arguments.
        cache: Where results are stored; by default in the cache that `DSNB_CACHE_DIRECTORY` names.
        packages: Names of packages whose versions count although the function does not name them.
        files: Files and folders whose contents count.
        env: Environment variables whose values count.
        ignore: Names of arguments that do not count, such as `verbose`.
        version: Any plain value; changing it makes everything be computed again.
        model_storage: Where results that keep folders of their own, such as a `Resource`, put them.
        pickles: Allow pickles for values that cannot be stored otherwise. Reading a pickle can run any code: use this
            only for a cache that no other user can write to.
        replay_output: Whether a result from the cache also shows what was printed and displayed when it was computed.

    Returns:
        The function, with the methods `explain` and `forget`. It can store arrays, numbers, text, and lists, tuples,
        dicts, sets, named tuples and dataclasses of them, and any object with `to_cache` and `from_cache`. If a result
        contains anything else, only the call is recorded, without its result, and a warning names the part that cannot
        be stored.

    Raises:
        InvalidArgumentError: when the function is called with an argument that has no comparable value, such as an open
            file, a generator or a connection.

    Example:
        >>> @dsnb.cache.remembered
        ... def train(lr):
        ...     return lr * 2
        >>> train(0.1), train(0.1)
        (0.2, 0.2)
        >>> train.explain()
        train(lr=0.1): from the cache
    """
    named = DeclaredInputs(
        packages=tuple(packages),
        files=path_tuple(files),
        env=tuple(env),
        ignore=tuple(ignore),
        version=version,
    )

    @checked(decorated=anything)
    def decorate(decorated: Callable[P, R]) -> Remembered[P, R]:
        return Remembered(
            decorated, named, cache, model_storage=model_storage, pickles=pickles, replay_output=replay_output
        )

    return decorate if function is None else decorate(function)

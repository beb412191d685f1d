"""The key of a call: all user code, data and declared inputs that its result depends on, as far as they can be found.

That is the function with all code that it reaches, its arguments (a dataset by its pipeline), and declared inputs that
cannot be found from there: packages, files, environment variables, a version. The key is a list of components, so that
two keys can be compared and their difference named.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from types import CodeType
from typing import Any

import msgspec
import xxhash

from dsnb.arguments import anything, checked, each, text
from dsnb.arguments import path as path_rule
from dsnb.cache.opened_files import FileState, file_states
from dsnb.cache.results.folder_hash import hash_folder
from dsnb.code.fingerprint.fingerprint import Component, Fingerprint
from dsnb.code.fingerprint.fingerprint import fingerprint as fingerprint_of
from dsnb.code.fingerprint.parts import encode_parts, encode_plain, short_repr
from dsnb.code.library_names import package_of
from dsnb.code.source import user_code_by_path
from dsnb.errors import InvalidArgumentError

_ARGUMENT = "argument "
_PIECE = 1 << 20
_CLOCK_TICK_NS = 2_000_000_000


class DeclaredInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a result depends on besides the function and its arguments.

    Attributes:
        packages: Names of packages whose versions count.
        files: Files and folders whose contents count.
        env: Names of environment variables whose values count.
        ignore: Names of arguments that do not count.
        version: Any plain value, changed by hand.
    """

    packages: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    version: Any = None

    def __post_init__(self) -> None:
        for package in self.packages:
            if package_of(package)[1] == "?":
                raise InvalidArgumentError(
                    f"`packages` names {package!r}, which is not installed here", hint="name it as it is imported"
                )
        if encode_plain(self.version) is None:
            raise InvalidArgumentError(
                f"`version` is a {type(self.version).__name__}", hint='pass a number or text, as in version="2"'
            )

    @property
    def absolute_paths(self) -> set[str]:
        """The files, as absolute paths."""
        return {os.path.abspath(path) for path in self.files}

    def components(self) -> Iterator[Component]:
        """The components of the declared inputs, in their current state."""
        yield _component("ignored arguments", "value", list(self.ignore))
        yield _component("version", "value", self.version)
        for name in self.env:
            yield _component(f"environment variable {name}", "value", os.environ.get(name))
        for name in self.packages:
            package, version = package_of(name)
            yield Component(package or name, "package", _digest(version.encode()), version or "of Python")
        for path in self.files:
            digest = _digest_of_file(os.path.abspath(path))
            yield Component(f"file {path}", "file", digest, "there" if digest else "not there")


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The key of one call.

    Attributes:
        digest: 32 hexadecimal digits.
        components: The components that the digest covers, with their paths.
        unhashable: The parts that have no fingerprint; if there are any, the digest must not be used.
        call: The call as a person would write it, as in "train(lr=0.1)".
        files: The states of the files that datasets name.
    """

    digest: str
    components: tuple[Component, ...]
    unhashable: tuple[str, ...]
    call: str
    files: tuple[FileState, ...] = ()

    def arguments(self) -> set[tuple[str, str, str]]:
        """The components of the arguments as (path, kind, digest), to be compared."""
        return {(part.path, part.kind, part.digest) for part in self.components if part.path.startswith(_ARGUMENT)}


class KeyMaker:
    """Makes the keys of one function's calls.

    Args:
        function: The function.
        declared: The inputs that count in addition.
    """

    def __init__(self, function: Callable[..., Any], declared: DeclaredInputs) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
        self.declared = declared
        self._signature = inspect.signature(function)
        unknown = set(declared.ignore) - set(self._signature.parameters)
        if unknown:
            raise InvalidArgumentError(
                f"`ignore` names {', '.join(sorted(unknown))}, which {self.name} does not take",
                hint=f"it takes {', '.join(self._signature.parameters)}",
            )

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """Make the key of a call.

        Raises:
            TypeError: the function does not accept these arguments.
        """
        given = self._signature.bind(*args, **kwargs).arguments
        arguments = self._arguments(args, kwargs)
        prints = [fingerprint_of(self.function, root=self.name, result=True)]
        prints += [fingerprint_of(value, root=_ARGUMENT + name, result=True) for name, value in arguments.items()]
        files = file_states(self._files_of(prints), "strict")
        named = (*map(_file_component, files), *self.declared.components())
        parts = {part.path: part for found in prints for part in found.components}
        parts |= {part.path: part for part in named}
        content = encode_parts(
            list(arguments), [found.digest for found in prints], [(part.path, part.digest) for part in named]
        )
        return Key(
            digest=_digest(content),
            components=tuple(parts.values()),
            unhashable=tuple(problem for found in prints for problem in found.unhashable),
            call=self._call_text({name: value for name, value in given.items() if name in arguments}, parts),
            files=files,
        )

    def _files_of(self, prints: Iterable[Fingerprint]) -> list[str]:
        """The files that datasets name, without those of `files`, whose contents count anyway."""
        return sorted({path for found in prints for path in found.files} - self.declared.absolute_paths)

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments, including defaults, without the ignored ones."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found = {
            name: _fingerprinted_value(value)
            for name, value in bound.arguments.items()
            if name not in self.declared.ignore
        }
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD and name in found:
                found[name] = dict(sorted(found[name].items()))
        return found

    def _call_text(self, given: Mapping[str, Any], parts: Mapping[str, Component]) -> str:
        shown = []
        for name, value in given.items():
            part = parts.get(_ARGUMENT + name)
            if part is None or _fingerprint_hook(value):
                shown.append(f"{name}=<{type(value).__name__}>")
            else:
                shown.append(f"{name}={part.detail}" if part.kind == "value" else f"{name}=<{part.detail}>")
        return f"{self.name}({', '.join(shown)})"

    def codes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, CodeType]:
        """The user's code objects that a call reaches, by the paths of their components."""
        found = user_code_by_path(self.function, root=self.name)
        for name, value in self._arguments(args, kwargs).items():
            if encode_plain(value) is None:
                found |= user_code_by_path(value, root=_ARGUMENT + name)
        return found


def _fingerprinted_value(value: Any) -> Any:
    """What is fingerprinted for a value: for a dataset its last operation, so that its operations are numbered."""
    hook = _fingerprint_hook(value)
    return hook(value) if hook else value


def _fingerprint_hook(value: Any) -> Callable[[Any], Any] | None:
    return None if isinstance(value, type) else getattr(type(value), "__dsnb_fingerprint__", None)


def _file_component(file_state: FileState) -> Component:
    _, path, state = file_state
    return Component(f"file {path}", "file", _digest(state.encode()), state.partition(",")[0])


def _component(path: str, kind: str, value: Any) -> Component:
    return Component(path, kind, _digest(encode_parts(value)), short_repr(value))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _digest_of_file(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return ""
    try:
        if os.path.isdir(path):
            return hash_folder(path, follow_links=True).digest
        state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        # A file that was just written may be written again within one tick of the file system's clock: do not cache it.
        settled = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > _CLOCK_TICK_NS
        return _hash_file(path, state) if settled else _hash_file.__wrapped__(path, state)
    except OSError as error:
        raise InvalidArgumentError(
            f"`files` names {path!r}, which cannot be read: {error.strerror or error}",
            hint="name files that can be read",
        ) from error


@lru_cache(maxsize=256)
def _hash_file(path: str, _: tuple[int, ...]) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


@checked(
    values=anything,
    packages=each(text, 'pass a list of names, as in ["scipy"]'),
    files=each(path_rule, 'pass a list of paths, as in ["settings.yaml"]'),
    env=each(text, 'pass a list of names, as in ["HOME"]'),
    version=anything,
)
def fingerprint(
    *values: Any,
    packages: Iterable[str] = (),
    files: Iterable[str | os.PathLike[str]] = (),
    env: Iterable[str] = (),
    version: Any = None,
) -> str:
    """A digest of everything that a result depends on, to be used as a key of a `TrainingCache`.

    It is equal in every process. It covers the same as the key of `remembered`: functions with all user code that they
    reach (other functions, classes, globals, helper modules), arrays by content, datasets by their pipeline and the
    state of the files that they name, and the versions of the packages in use.

    Args:
        values: Functions, classes, arrays, datasets, numbers, text, and structures of them; their order counts.
        packages: Names of packages whose versions count although no value names them.
        files: Files and folders whose contents count.
        env: Environment variables whose values count.
        version: Any plain value, changed by hand.

    Returns:
        32 hexadecimal digits.

    Raises:
        InvalidArgumentError: a value has no fingerprint, such as an open file, a generator or a connection; the error
            names the path to it.

    Example:
        >>> import dsnb, numpy as np
        >>> def train(x, lr):
        ...     return x * lr
        >>> key = dsnb.cache.fingerprint(train, np.arange(3), 0.1)
        >>> key == dsnb.cache.fingerprint(train, np.arange(3), 0.1)
        True
        >>> key == dsnb.cache.fingerprint(train, np.arange(4), 0.1)
        False
    """
    named = DeclaredInputs(packages=tuple(packages), files=path_tuple(files), env=tuple(env), version=version)
    prints = [
        fingerprint_of(_fingerprinted_value(value), root=f"value {n}", result=True) for n, value in enumerate(values, 1)
    ]
    problems = [problem for found in prints for problem in found.unhashable]
    if problems:
        raise InvalidArgumentError(
            f"`values` have no fingerprint: {'; '.join(problems)}",
            hint="pass a path, a seed or a function instead",
        )
    found = file_states(sorted({path for one in prints for path in one.files} - named.absolute_paths), "strict")
    counted = [(part.path, part.digest) for part in (*map(_file_component, found), *named.components())]
    return _digest(encode_parts("fingerprint", [one.digest for one in prints], counted))


def path_tuple(files: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """The paths in `files` as text; raises if `files` is a single path."""
    if isinstance(files, str | os.PathLike):
        raise InvalidArgumentError(f"`files` is {files!r}, one path", hint='pass a list, as in files=["prices.csv"]')
    return tuple(os.fspath(path) for path in files)

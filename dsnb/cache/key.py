"""The key of a call: everything of the user's that its result follows from, as far as that can be seen.

That is the function with all that it reaches, its arguments (a dataset by its pipeline), and what cannot be seen from
there but was named: packages, files, variables of the environment, a version. It is a list of components, so that two
keys can be compared and the difference named.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from types import CodeType
from typing import Any

import xxhash

from dsnb.cache.content import content_of
from dsnb.dataclass import dataclass
from dsnb.elements.fingerprint import Component, fingerprint
from dsnb.elements.fingerprint_parts import encode, packed, short
from dsnb.elements.library import package_of
from dsnb.elements.source import codes_of
from dsnb.errors import InvalidArgumentError

_ARGUMENT = "argument "
_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a result follows from besides the function and its arguments.

    Attributes:
        packages: Names of packages, whose versions count.
        files: Files and folders, whose contents count.
        env: Names of variables of the environment, whose values count.
        ignore: Names of arguments that do not count.
        version: Any plain value, to be changed by hand.
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
        if encode(self.version) is None:
            raise InvalidArgumentError(
                f"`version` is a {type(self.version).__name__}", hint='pass a number or text, as in version="2"'
            )

    def components(self) -> Iterator[Component]:
        """What is there now of what is named."""
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


@dataclass(frozen=True, kw_only=True)
class Key:
    """The key of one call.

    Attributes:
        digest: 32 hexadecimal digits.
        components: What it covers, by path.
        unhashable: What has no value; then the digest is no key.
        call: The call as a person would write it, as in "train(lr=0.1)".
    """

    digest: str
    components: tuple[Component, ...]
    unhashable: tuple[str, ...]
    call: str

    def arguments(self) -> set[tuple[str, str, str]]:
        """The components of the arguments, to compare."""
        return {(part.path, part.kind, part.digest) for part in self.components if part.path.startswith(_ARGUMENT)}


class KeyMaker:
    """Makes the keys of one function's calls.

    Args:
        function: The function.
        named: What counts besides.
    """

    def __init__(self, function: Callable[..., Any], named: Named) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
        self.named = named
        self._signature = inspect.signature(function)
        unknown = set(named.ignore) - set(self._signature.parameters)
        if unknown:
            raise InvalidArgumentError(
                f"`ignore` names {', '.join(sorted(unknown))}, which {self.name} does not take",
                hint=f"it takes {', '.join(self._signature.parameters)}",
            )

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call.

        Raises:
            TypeError: the function does not take such arguments.
        """
        given = self._signature.bind(*args, **kwargs).arguments
        arguments = self._arguments(args, kwargs)
        prints = [fingerprint(self.function, root=self.name)]
        prints += [fingerprint(value, root=_ARGUMENT + name) for name, value in arguments.items()]
        named = tuple(self.named.components())
        parts = {part.path: part for found in prints for part in found.components}
        parts |= {part.path: part for part in named}
        whole = packed(
            list(arguments), [found.digest for found in prints], [(part.path, part.digest) for part in named]
        )
        return Key(
            digest=_digest(whole),
            components=tuple(parts.values()),
            unhashable=tuple(problem for found in prints for problem in found.unhashable),
            call=self._call({name: value for name, value in given.items() if name in arguments}, parts),
        )

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What the function is given, defaults included, without what does not count."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found = {name: _seen(value) for name, value in bound.arguments.items() if name not in self.named.ignore}
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD and name in found:
                found[name] = dict(sorted(found[name].items()))
        return found

    def _call(self, given: Mapping[str, Any], parts: Mapping[str, Component]) -> str:
        shown = []
        for name, value in given.items():
            part = parts.get(_ARGUMENT + name)
            if part is None or _hook(value):
                shown.append(f"{name}=<{type(value).__name__}>")
            else:
                shown.append(f"{name}={part.detail}" if part.kind == "value" else f"{name}=<{part.detail}>")
        return f"{self.name}({', '.join(shown)})"

    def codes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, CodeType]:
        """The code of the user's that a call reaches, by the paths of its components."""
        found = codes_of(self.function, root=self.name)
        for name, value in self._arguments(args, kwargs).items():
            if encode(value) is None:
                found |= codes_of(value, root=_ARGUMENT + name)
        return found


def _seen(value: Any) -> Any:
    """What stands for a value: a dataset is its last operation, so that the operations have their numbers."""
    hook = _hook(value)
    return hook(value) if hook else value


def _hook(value: Any) -> Callable[[Any], Any] | None:
    return None if isinstance(value, type) else getattr(type(value), "__dsnb_fingerprint__", None)


def _component(path: str, kind: str, value: Any) -> Component:
    return Component(path, kind, _digest(packed(value)), short(value))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _digest_of_file(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return ""
    if os.path.isdir(path):
        return content_of(path).digest
    return _read_through(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@lru_cache(maxsize=256)
def _read_through(path: str, _: tuple[int, ...]) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()

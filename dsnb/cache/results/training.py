"""The training cache: finds the output of a training step by the fingerprint of the step's inputs.

It has two levels. The first maps a key to the fingerprint of the output; it is cheap and kept for every step, so that
the steps after an unchanged step are recognised as unchanged. The second maps that fingerprint to the output itself,
for outputs that can write themselves to a folder.
"""

from __future__ import annotations

import abc
import logging
import os
import sys
import weakref
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Protocol, Self, runtime_checkable

from dsnb.arguments import anything, checked, encodable, instance, number, optional, path, text
from dsnb.cache.results.folder_hash import FolderContent
from dsnb.cache.results.index import CacheEntry
from dsnb.cache.results.model_storage import ModelStorage
from dsnb.cache.results.store import ResultStore, StagedResult
from dsnb.code.usercode import namespace
from dsnb.errors import DsnbError, InvalidArgumentError
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.files import translate_os_error

logger = logging.getLogger(__name__)

_WRITE = Failpoint("result write")
_MEBIBYTE: Final = 1 << 20
LARGEST_SIZE: Final = 1e9  # MiB: more than a disk holds, and as bytes still an SQLite integer
_DEFAULT_NAME: Final = "cache.db"
_DEFAULT_SIZE: Final = "1000"


@runtime_checkable
class Cacheable(Protocol):
    """An output that can write itself into a folder and be made from it again.

    On reading, the class is looked up by its name among the modules that are imported at that time.

    Example:
        >>> class Words:
        ...     def __init__(self, words):
        ...         self.words = words
        ...     def to_cache(self, directory, model_storage):
        ...         (directory / "words.txt").write_text(" ".join(self.words))
        ...     @classmethod
        ...     def from_cache(cls, node_name, directory, model_storage, output_fingerprint):
        ...         return cls((directory / "words.txt").read_text().split())
        >>> isinstance(Words(["a", "b"]), Cacheable)
        True
    """

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        """Write this output into `directory`, which exists and is empty."""
        ...

    @classmethod
    def from_cache(cls, node_name: str, directory: Path, model_storage: ModelStorage, output_fingerprint: str) -> Any:
        """Make the output again from what `to_cache` wrote. The folder must only be read."""
        ...


class TrainingCache(abc.ABC):
    """Keeps the outputs of training steps, by fingerprints.

    Example:
        >>> class NoCache(TrainingCache):
        ...     def cache_output(self, fingerprint_key, output, output_fingerprint, model_storage):
        ...         pass
        ...     def get_cached_output_fingerprint(self, fingerprint_key):
        ...         return None
        ...     def get_cached_result(self, output_fingerprint_key, node_name, model_storage):
        ...         return None
        >>> NoCache().get_cached_output_fingerprint("key") is None
        True
    """

    @abc.abstractmethod
    def cache_output(
        self, fingerprint_key: str, output: Any, output_fingerprint: str, model_storage: ModelStorage
    ) -> None:
        """Store the pair of fingerprints, and the output too if it is `Cacheable`.

        Args:
            fingerprint_key: The fingerprint of everything that the output depends on.
            output: The output of the step.
            output_fingerprint: The fingerprint of the output.
            model_storage: Where the training keeps what it persists.
        """

    @abc.abstractmethod
    def get_cached_output_fingerprint(self, fingerprint_key: str) -> str | None:
        """The output fingerprint stored with a key, or None."""

    @abc.abstractmethod
    def get_cached_result(self, output_fingerprint_key: str, node_name: str, model_storage: ModelStorage) -> Any | None:
        """The output with this fingerprint, made again; None if it is not stored.

        Args:
            output_fingerprint_key: The fingerprint of the output.
            node_name: The name of the step that asks for it.
            model_storage: Where the output puts what it persists.
        """


_SIZE_HINT: Final = f"pass MiB, from 0 to {LARGEST_SIZE:,.0f}"
_STORAGE = instance(ModelStorage, hint="pass dsnb.cache.ModelStorage(folder)")


class LocalTrainingCache(TrainingCache):
    """A training cache in a local folder. Any number of threads and processes may use it at the same time.

    A cache that cannot be read behaves like an empty one: a look-up returns None and logs a warning, and never raises.

    Args:
        directory: The folder: a new or empty one, or an existing cache. Files of others in it are never counted or
            removed. Default: `DSNB_CACHE_DIRECTORY`, else `dsnb/training` in the user's cache folder.
        name: The file name of the database in it. Default: `DSNB_CACHE_NAME`, else `cache.db`.
        max_size: The largest total size of the results, in MiB; with 0 nothing is stored or found. Default:
            `DSNB_MAX_CACHE_SIZE`, else 1000.

    Raises:
        InvalidArgumentError: a setting has an invalid value.
        FailedPreconditionError: the folder holds other files and is not a cache, was written by a newer version of
            dsnb, or is on a network file system.
        DataLossError: the database is damaged.

    Example:
        >>> import tempfile
        >>> from dsnb.cache import ModelStorage, Resource
        >>> folder = tempfile.TemporaryDirectory()
        >>> storage = ModelStorage(f"{folder.name}/model-1")
        >>> resource = Resource("tokenizer", "output")
        >>> with storage.write_to(resource) as directory:
        ...     written = (directory / "vocabulary.txt").write_text("a b c")
        >>> cache = LocalTrainingCache(f"{folder.name}/cache", max_size=200)
        >>> cache.cache_output("key", resource, "output", storage)
        >>> cache.get_cached_output_fingerprint("key")
        'output'
        >>> folder.cleanup()
    """

    @checked(
        directory=optional(path),
        name=optional(text),
        max_size=optional(number(_SIZE_HINT, least=0.0, most=LARGEST_SIZE)),
    )
    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        max_size: float | None = None,
    ) -> None:
        self.directory = _check_directory(directory or os.environ.get("DSNB_CACHE_DIRECTORY") or _default_directory())
        self.name = _check_name(name or os.environ.get("DSNB_CACHE_NAME") or _DEFAULT_NAME)
        self.max_size = _check_size(
            os.environ.get("DSNB_MAX_CACHE_SIZE") or _DEFAULT_SIZE if max_size is None else max_size
        )
        self._store = self._open_store() if self.max_size else None
        if self._store is not None:
            weakref.finalize(self, self._store.close)

    def _open_store(self) -> ResultStore:
        doing = f"opening the cache {str(self.directory)!r}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            return ResultStore(self.directory, self.name, int(self.max_size * _MEBIBYTE))
        except DsnbError:  # some of them are OSErrors too
            raise
        except OSError as error:
            raise translate_os_error(error, doing, "nothing is cached") from error

    def __repr__(self) -> str:
        return f"LocalTrainingCache({str(self.directory)!r}, name={self.name!r}, max_size={self.max_size:g})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle is only the settings: another process opens the same folder itself.
        return _reopen, (str(self.directory), self.name, self.max_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @checked()
    def close(self) -> None:
        """Close the database. Stored results stay; the next use opens it again."""
        if self._store is not None:
            self._store.close()

    @property
    def store(self) -> ResultStore | None:
        """The store of the entries and results; None if the size is 0."""
        return self._store

    @property
    def locks(self) -> Path:
        """The file whose locks make identical calls wait for each other."""
        return self.directory / f"{self.name}-calls"

    @property
    def used(self) -> int:
        """The total size of the results now, in bytes."""
        if self._store is None:
            return 0
        with self._store.reading() as index:
            return index.total_bytes()

    @checked(
        fingerprint_key=encodable,
        output=anything,
        output_fingerprint=encodable,
        model_storage=_STORAGE,
        seconds=number("pass a number of seconds, 0 or more", least=0.0, most=1e9),
    )
    def cache_output(
        self,
        fingerprint_key: str,
        output: Any,
        output_fingerprint: str,
        model_storage: ModelStorage,
        *,
        seconds: float = 0.0,
    ) -> None:
        """Store the pair of fingerprints, and the output too if it is `Cacheable`.

        If the output fails to write itself, an error is logged and only its fingerprint is stored. If the output is
        larger than the whole cache, only its fingerprint is stored, without an error.

        Args:
            fingerprint_key: The fingerprint of everything that the output depends on.
            output: The output of the step.
            output_fingerprint: The fingerprint of the output.
            model_storage: Where the training keeps what it persists.
            seconds: How long the output took to make. Outputs that took long for their size are kept longer.

        Raises:
            InvalidArgumentError: a fingerprint is not text.
            FailedPreconditionError: the database was removed.
            ResourceExhaustedError: the disk is full.
            UnavailableError: another process keeps the database locked.
        """
        self.keep(CacheEntry(key=fingerprint_key, output=output_fingerprint), output, model_storage, seconds)

    def keep(self, entry: CacheEntry, output: Any, model_storage: ModelStorage, seconds: float = 0.0) -> bool:
        """`cache_output` for an entry that may have a note; returns whether the output itself is stored."""
        for name, given in (("fingerprint_key", entry.key), ("output_fingerprint", entry.output)):
            if not isinstance(given, str):
                raise InvalidArgumentError(f"`{name}` is a {type(given).__name__}", hint="fingerprints are text")
        if self._store is None or not self._store.writable:
            return False
        if not isinstance(output, Cacheable) or isinstance(output, type):
            return self._store.add(entry)
        try:
            with self._store.new_folder() as folder:
                content = self._write_output(self._store, output, folder, model_storage)
                if content is None:
                    return self._store.add(entry)
                return self._store.add(
                    entry, StagedResult(folder=folder, content=content, type=class_name(type(output)), seconds=seconds)
                )
        except DsnbError:
            raise
        except OSError as error:
            doing = f"storing a result in {str(self.directory)!r}"
            raise translate_os_error(error, doing, "it is not stored; what is stored stays") from error

    def _write_output(
        self, store: ResultStore, output: Cacheable, folder: Path, model_storage: ModelStorage
    ) -> FolderContent | None:
        try:
            with _WRITE:
                output.to_cache(folder, model_storage)
            content = store.hash_and_sync(folder)
        except Exception:
            logger.exception("%s could not be written to the cache: only its fingerprint is kept", type(output))
            return None
        if content.nbytes > store.limit:
            logger.debug("a result of %d bytes is larger than the cache: only its fingerprint is kept", content.nbytes)
            return None
        return content

    @checked(fingerprint_key=encodable)
    def get_cached_output_fingerprint(self, fingerprint_key: str) -> str | None:
        """The output fingerprint stored with a key, or None; marks the entry as most recently used."""
        if self._store is None:
            return None
        try:
            return self._store.output_of(fingerprint_key)
        except (DsnbError, OSError) as error:
            logger.warning("the cache could not be read, so the step counts as changed: %s", error)
            return None

    @checked(output_fingerprint_key=encodable, node_name=text, model_storage=_STORAGE)
    def get_cached_result(self, output_fingerprint_key: str, node_name: str, model_storage: ModelStorage) -> Any | None:
        """The output with this fingerprint, made again, or None; marks its entry as most recently used.

        The class is looked up by its name among the imported modules. The database cannot cause an import.
        """
        if self._store is None:
            return None
        try:
            with self._store.leased(output_fingerprint_key) as leased:
                if leased is None:
                    return None
                found, directory = leased
                return _restore(found.type, node_name, directory, model_storage, output_fingerprint_key)
        except Exception as error:  # noqa: BLE001 - a broken cache must not break a training: the step runs again
            logger.warning(
                "the result of %r could not be read from the cache, and counts as missing: %s", node_name, error
            )
            return None


def _reopen(directory: str, name: str, max_size: float) -> LocalTrainingCache:
    return LocalTrainingCache(directory, name=name, max_size=max_size)


def _restore(kind: str, node_name: str, directory: Path, model_storage: ModelStorage, output: str) -> Any | None:
    cls = imported_class(kind)
    if cls is None or not issubclass(cls, Cacheable):
        logger.warning("a result is a %s, which is no Cacheable class of a module that is imported here", kind)
        return None
    return cls.from_cache(node_name, directory, model_storage, output)


def class_name(cls: type) -> str:
    """The name by which `imported_class` finds a class again, as in "module:Outer.Inner"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def imported_class(name: str) -> type | None:
    """The class with this name, if its module is imported. Imports nothing, and calls no module's `__getattr__`."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        if not isinstance(found, ModuleType | type):
            return None
        found = (namespace(found) if isinstance(found, ModuleType) else vars(found)).get(part)
    return found if isinstance(found, type) and class_name(found) == name else None


# ------------------------------------------------------------------------------------------------------------- settings


def _default_directory() -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dsnb", "training")


def _check_directory(given: str | os.PathLike[str]) -> Path:
    """The absolute path, resolved at once: a later change of the working directory must not change the cache."""
    folder = Path(os.path.abspath(os.path.expanduser(given)))
    for name, precious in (("the working directory", Path.cwd()), ("the home directory", Path.home())):
        if folder == precious or folder in precious.parents:
            raise InvalidArgumentError(
                f"`directory` is {str(folder)!r}, which is {name} or above it",
                did="nothing was opened",
                hint="use a separate folder for the cache",
            )
    return folder


def _check_name(given: str) -> str:
    if os.path.basename(given) != given or given in {".", ".."} or "?" in given:
        raise InvalidArgumentError(
            f"`name` of the cache's database is {given!r}", hint='DSNB_CACHE_NAME is a file name, as in "cache.db"'
        )
    return given


def _check_size(given: str | float) -> float:
    try:
        size = float(given)
    except (TypeError, ValueError):
        size = -1.0
    if not 0 <= size <= LARGEST_SIZE:
        raise InvalidArgumentError(
            f"`max_size` of the cache is {given!r}",
            hint=f"max_size and DSNB_MAX_CACHE_SIZE are MiB, from 0 to {LARGEST_SIZE:,.0f}; 0 switches the cache off",
        )
    return size

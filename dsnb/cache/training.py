"""The training cache: what a step of a training made, found again by the fingerprint of what it was made from.

Two levels: from the key to the fingerprint of the output, cheap and kept for every step, so that what comes after an
unchanged step is recognised as unchanged; and from there to the output itself, for outputs that can write themselves
down.
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
from dsnb.cache.failpoints import Failpoint
from dsnb.cache.files import translate_os_error
from dsnb.cache.folder_hash import FolderContent
from dsnb.cache.index import CacheEntry
from dsnb.cache.model_storage import ModelStorage
from dsnb.cache.store import ResultStore, StagedResult
from dsnb.elements.usercode import namespace
from dsnb.errors import DsnbError, InvalidArgumentError

logger = logging.getLogger(__name__)

_WRITE = Failpoint("result write")
_MEBIBYTE: Final = 1 << 20
LARGEST_SIZE: Final = 1e9  # MiB: more than a disk holds; as bytes it still fits an integer of SQLite
_DEFAULT_NAME: Final = "cache.db"
_DEFAULT_SIZE: Final = "1000"


@runtime_checkable
class Cacheable(Protocol):
    """An output that can write itself into a folder and be made from it again.

    Its class is found by its name when a result is read, among the modules that are imported by then.
    """

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        """Write this into `directory`, which is there and empty."""
        ...

    @classmethod
    def from_cache(cls, node_name: str, directory: Path, model_storage: ModelStorage, output_fingerprint: str) -> Any:
        """Make the output again from what `to_cache` wrote; the folder is to be read only."""
        ...


class TrainingCache(abc.ABC):
    """Keeps what the steps of a training made, by fingerprints."""

    @abc.abstractmethod
    def cache_output(
        self, fingerprint_key: str, output: Any, output_fingerprint: str, model_storage: ModelStorage
    ) -> None:
        """Keep the pair of fingerprints, and the output too if it is `Cacheable`.

        Args:
            fingerprint_key: The fingerprint of everything that the output follows from.
            output: What the step made.
            output_fingerprint: The fingerprint of the output.
            model_storage: Where the training keeps what it persists.
        """

    @abc.abstractmethod
    def get_cached_output_fingerprint(self, fingerprint_key: str) -> str | None:
        """The output fingerprint stored with a key, or None."""

    @abc.abstractmethod
    def get_cached_result(self, output_fingerprint_key: str, node_name: str, model_storage: ModelStorage) -> Any | None:
        """The output with this fingerprint, made again, or None.

        Args:
            output_fingerprint_key: The fingerprint of the output.
            node_name: The name of the step that asks for it.
            model_storage: Where the output is to put what it persists.
        """


_SIZE_HINT: Final = f"pass MiB, from 0 to {LARGEST_SIZE:,.0f}"
_STORAGE = instance(ModelStorage, hint="pass dsnb.cache.ModelStorage(folder)")


class LocalTrainingCache(TrainingCache):
    """A training cache in a folder of this machine, for any number of threads and processes at once.

    What cannot be read is not there: a look-up in a broken cache gives None and a warning in the log, never an error.

    Args:
        directory: The folder: a new or an empty one, or a cache. What others put into it is never counted or removed.
            Default: `DSNB_CACHE_DIRECTORY`, else `dsnb/training` in the user's cache folder.
        name: The name of the database in it. Default: `DSNB_CACHE_NAME`, else `cache.db`.
        max_size: MiB that the results may weigh; with 0 nothing is stored, and nothing found. Default:
            `DSNB_MAX_CACHE_SIZE`, else 1000.

    Raises:
        InvalidArgumentError: a setting that can never be right.
        FailedPreconditionError: the folder holds other things and is no cache, was written by a newer version of dsnb,
            or lies on a network file system.
        DataLossError: the database is damaged.

    Example:
        >>> cache = LocalTrainingCache("/data/cache", max_size=200)
        >>> cache.cache_output("key", resource, "output", storage)
        >>> cache.get_cached_output_fingerprint("key")
        'output'
        >>> cache.get_cached_result("output", "tokenizer", other_storage)
        Resource(name='tokenizer', output_fingerprint='output')
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
        # In another process it is the same folder, opened there.
        return _reopen, (str(self.directory), self.name, self.max_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @checked()
    def close(self) -> None:
        """Close the database. What is stored stays; the next use opens it again."""
        if self._store is not None:
            self._store.close()

    @property
    def store(self) -> ResultStore | None:
        """What keeps the entries; None where the size is 0."""
        return self._store

    @property
    def locks(self) -> Path:
        """The file by which calls that are being computed keep identical ones waiting."""
        return self.directory / f"{self.name}-calls"

    @property
    def used(self) -> int:
        """The bytes that the results weigh now."""
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
        """Keep the pair of fingerprints, and the output too if it is `Cacheable`.

        An output that fails to write itself is logged as an error, and its fingerprint is kept; likewise, without the
        error, one that is larger than the whole cache.

        Args:
            fingerprint_key: The fingerprint of everything that the output follows from.
            output: What the step made.
            output_fingerprint: The fingerprint of the output.
            model_storage: Where the training keeps what it persists.
            seconds: How long it took to make; what took long for its size is kept longer.

        Raises:
            InvalidArgumentError: a fingerprint that is no text.
            FailedPreconditionError: the database was removed.
            ResourceExhaustedError: the disk is full.
            UnavailableError: another process keeps the database locked.
        """
        self.keep(CacheEntry(key=fingerprint_key, output=output_fingerprint), output, model_storage, seconds)

    def keep(self, entry: CacheEntry, output: Any, model_storage: ModelStorage, seconds: float = 0.0) -> bool:
        """`cache_output` for an entry with a note; whether the output itself is kept."""
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
        """The output fingerprint stored with a key, or None; the entry is then the one used last."""
        if self._store is None:
            return None
        try:
            return self._store.output_of(fingerprint_key)
        except (DsnbError, OSError) as error:
            logger.warning("the cache could not be asked, so the step counts as changed: %s", error)
            return None

    @checked(output_fingerprint_key=encodable, node_name=text, model_storage=_STORAGE)
    def get_cached_result(self, output_fingerprint_key: str, node_name: str, model_storage: ModelStorage) -> Any | None:
        """The output with this fingerprint, made again, or None; its entry is then the one used last.

        Its class is looked up by its name among the modules that are imported: the database makes none be imported.
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
            logger.warning("the result of %r could not be read from the cache, and is none: %s", node_name, error)
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
    """A class by its name, if its module is imported; nothing is imported, and no module is asked to make it up."""
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
    """Made absolute at once: another working directory later does not mean another cache."""
    folder = Path(os.path.abspath(os.path.expanduser(given)))
    for name, precious in (("the working directory", Path.cwd()), ("the home directory", Path.home())):
        if folder == precious or folder in precious.parents:
            raise InvalidArgumentError(
                f"`directory` is {str(folder)!r}, which is {name} or above it",
                did="nothing was opened",
                hint="give the cache a folder of its own",
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

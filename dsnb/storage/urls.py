"""Files that have a URL (`s3://`, `gs://`, `hf://`, `https://`, ...): checked, listed, described and read by fsspec.

Credentials stay where fsspec finds them: the environment, the configuration files of the store's client, or fsspec's
own configuration. A URL with a password is refused, because the URLs of a pipeline are part of its pickle, of work
folders and of statuses. What a store says in an error is shown without the query of a URL, which may be a signature.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from dsnb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.system_limits import limit_error, start_thread

INSTALL: Final = "pip install 'dsnb[remote]'"

T = TypeVar("T")

_URL: Final = re.compile(r"[a-zA-Z][\w+.-]*(::[a-zA-Z][\w+.-]*)*://")
_LOCAL: Final = ("file://", "local://")
_QUERY: Final = re.compile(r"(?<=\w)\?[^\s'\")>]*")
_ATTEMPTS: Final = 3
_FIRST_PAUSE_S: Final = 0.2
_VERSION_KEYS: Final = ("ETag", "etag", "generation", "md5Hash", "blob_id", "LastModified", "Last-Modified", "mtime")
"""What stores call the property of a file that changes when it is written again; the first one that is there counts."""


def is_url(path: str) -> bool:
    """Whether a text is a URL and not a path.

    Example:
        >>> is_url("s3://bucket/a.parquet"), is_url("simplecache::https://host/a"), is_url("/data/a.parquet")
        (True, True, False)
    """
    return _URL.match(path) is not None


def absolute(path: str) -> str:
    """Return a path as an absolute one; a URL as it is, except that `file://` becomes a path."""
    for scheme in _LOCAL:
        path = path.removeprefix(scheme)
    return path if is_url(path) else os.path.abspath(path)


def without_password(where: str) -> str:
    """A location for display: without user name and password, before the host or in the query.

    Example:
        >>> without_password("redis://:secret@host:6379/0"), without_password("redis://host/0?password=secret")
        ('redis://host:6379/0', 'redis://host/0')
    """
    scheme, mark, rest = where.partition("://")
    if not mark:
        return where
    return f"{scheme}{mark}{rest.rpartition('@')[2].partition('?')[0]}"


def shown(path: str) -> str:
    """A path or the URL of a file for display: without its query, which may be a signature."""
    return _QUERY.sub("", path) if is_url(path) else path


def check_protocols(name: str, url: str, purpose: str, did: str) -> None:
    """Import what fsspec needs for a URL.

    Args:
        name: The name of the argument, for errors.
        url: The URL.
        purpose: What it is for, as in "reading from".
        did: The consequence, for errors.

    Raises:
        InvalidArgumentError: fsspec does not know the protocol.
        FailedPreconditionError: a package that the protocol needs is not installed.
    """
    protocols = protocols_of(url)
    require_package("fsspec", f"{purpose} {protocols[0]}://", INSTALL, did)
    import fsspec

    for protocol in protocols:
        try:
            fsspec.get_filesystem_class(protocol)
        except ValueError as error:
            raise InvalidArgumentError(
                f"`{name}` begins with {protocol}://, which fsspec does not know", hint="look at the address"
            ) from error
        except ImportError as error:
            raise FailedPreconditionError(
                f"{purpose} {protocol}:// needs a package that is not installed", did=did, hint=str(error)
            ) from error


def require_package(package: str, purpose: str, install: str, did: str) -> None:
    """Import an optional package now, not with the first element.

    Ctrl-C during an import can leave a package that cannot be imported again in this process.

    Raises:
        FailedPreconditionError: it is not installed; the error has the line that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise FailedPreconditionError(
            f"{purpose} needs the package {package}, which is not installed", did=did, hint=install
        )
    importlib.import_module(package)


def protocols_of(url: str) -> tuple[str, ...]:
    """The protocols of a URL; several if it is chained, as in `simplecache::s3://`."""
    return tuple(url.partition("://")[0].split("::"))


def check_file_url(name: str, url: str) -> str:
    """Check and return the URL of a file to read, or a pattern of such URLs.

    Raises:
        InvalidArgumentError: it holds a password, or fsspec does not know its protocol.
        FailedPreconditionError: a package that it needs is not installed.
    """
    if any(_has_password(part) for part in url.split("::")):
        raise InvalidArgumentError(
            f"`{name}` holds a password: {without_password(url)}",
            did="nothing was read: the pipeline, which workers get and a work folder keeps, would hold it too",
            hint="leave it out; put it where the store's client looks for it on each worker, for instance in "
            "environment variables or in fsspec's configuration (~/.config/fsspec/)",
        )
    if not url.startswith(_LOCAL):
        check_protocols(name, url, "reading from", "nothing was read")
    return url


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # A lone name is a user of ssh or a container of Azure, but a token where http has one.
        return parts.password is not None or (parts.scheme in ("http", "https") and parts.username is not None)
    except ValueError:  # brackets of a pattern look like an address of IPv6
        return ":" in url.partition("://")[2].partition("/")[0].rpartition("@")[0]


def matching_urls(pattern: str) -> list[str]:
    """The URLs of the files that match a pattern with `*`, `?`, `[...]` and `**`, sorted."""
    first, mark, rest = pattern.partition("::")
    if mark and "://" not in first:  # a cache in front of a store: simplecache::s3://
        return [f"{first}{mark}{url}" for url in matching_urls(rest)]
    if first.startswith("http") and not set(first) & set("*["):
        return [pattern]  # `?` begins its query
    with _explained(pattern):
        system, path = _file_system(pattern)
        found = system.glob(path, detail=True)
        names = [name for name, info in found.items() if info.get("type") != "directory"]
        return sorted(f"{system.unstrip_protocol(name)}{mark}{rest}" for name in names)


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, which lists files anew each time, and the path there."""
    import fsspec

    kind = fsspec.get_filesystem_class(protocols_of(url)[-1])
    if kind.__module__.startswith("obstore."):  # keeps no listings, and refuses settings that it does not know
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    else:
        found = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return found


def version_text(url: str) -> str | None:
    """The size and version of a file as text; None if there is no such file."""
    try:
        return RemoteFile(url).version_text
    except FileNotFoundError:
        return None


class RemoteFile:
    """A file in a store, of which ranges can be read. Thread-safe.

    Args:
        url: Its URL.

    Attributes:
        size: Its size in bytes; None if the store does not report one.
        version: Changes when the file is written again, if the store reports any such property; else empty.

    Raises:
        FileNotFoundError: there is no such file.
        UnavailableError: the store cannot be reached, or answers with an error.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with _explained(url):
            self._system, self._path = _file_system(url)
            info = self._system.info(self._path)
        self.size: int | None = info.get("size")
        self.version = str(next((info[key] for key in _VERSION_KEYS if info.get(key)), ""))

    @property
    def version_text(self) -> str:
        """Size and version, as text that changes when the file is written again."""
        return f"{self.size} bytes, version {self.version}"

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`; fewer only at the end of the file. Failed requests are repeated.

        Raises:
            DataLossError: the store sent fewer bytes than the file has there.
            UnavailableError: the store cannot be reached, or answers with an error.
        """
        if self.size is None:
            return self.read_all()[start:end]
        end = min(end, self.size)
        if end <= start:
            return b""
        for attempt in range(_ATTEMPTS):
            try:
                return self._read_once(start, end)
            except (UnavailableError, DataLossError):
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(_FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    def read_all(self) -> bytes:
        """All bytes; for a file of unknown size the only way."""
        if self.size is not None:
            return self.read(0, self.size)
        with _explained(self.url):
            return bytes(self._system.cat_file(self._path))

    def _read_once(self, start: int, end: int) -> bytes:
        with _explained(self.url):
            data: bytes = self._system.cat_file(self._path, start=start, end=end)
        if len(data) == end - start:
            return data
        if len(data) == self.size:  # a server that knows no ranges sends everything
            return data[start:end]
        raise DataLossError(
            f"{shown(self.url)} has {self.size:,} bytes, and its store sent {len(data):,} for {start:,} to {end:,}",
            did="nothing of it was used",
            hint="was the file written again while it was read?",
        )

    def fetch(self, start: int, end: int) -> Future[bytes]:
        """Begin `read` on a thread of its own."""
        return on_thread(lambda: self.read(start, end))


def on_thread(call: Callable[[], T]) -> Future[T]:
    """Call a function on a thread of its own, which may end after the process has lost interest in the result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            future.set_exception(error)
        else:
            future.set_result(result)

    start_thread(threading.Thread(target=run, name="dsnb-fetch", daemon=True))
    return future


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Raise errors of a store as few kinds that say which file, without the store's own error, which may show secrets.

    Raises:
        FileNotFoundError: with a note that names this host.
        UnavailableError: for any other error of the store.
    """
    try:
        yield
    except FileNotFoundError:
        raise not_found(shown(url)) from None
    except PermissionError as error:
        raise PermissionError(errno.EACCES, f"the store refuses access ({_text(error)})", shown(url)) from None
    except (DataLossError, UnavailableError, MemoryError):
        raise
    except Exception as error:
        limit = limit_error(error)
        if limit is not None:
            raise limit from error
        raise UnavailableError(
            f"{shown(url)} cannot be read: {type(error).__name__}: {_text(error)}",
            did="this error takes the place of its elements",
            hint="look at the address, and at the credentials that the store's client finds in this process",
        ) from None


def _text(error: Exception) -> str:
    return _QUERY.sub("", str(error))


def not_found(path: str) -> FileNotFoundError:
    """The error for a missing file."""
    return add_host(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path))


_LOOKED_FOR: Final = "looked for on the host"


def add_host(error: FileNotFoundError) -> FileNotFoundError:
    """Add a note with the host and process in which a file is missing, once, and return the error."""
    if any(note.startswith(_LOOKED_FOR) for note in getattr(error, "__notes__", ())):
        return error
    error.add_note(
        f"{_LOOKED_FOR} {socket.gethostname()} in process {os.getpid()}; a worker on another host has other "
        "local files: use a folder that all hosts mount at the same path, or a URL"
    )
    return error

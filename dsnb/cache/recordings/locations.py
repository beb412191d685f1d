"""Locations of recordings that a user can name: a directory, or the address of a server or a remote store."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from urllib.parse import urlsplit

from dsnb.arguments import path, text
from dsnb.cache.recordings.backends import PipelineRecordings
from dsnb.cache.recordings.metadata import RecordingMetadata
from dsnb.cache.recordings.recording_directory import DirectoryRecordings, check_format
from dsnb.errors import InvalidArgumentError
from dsnb.storage.urls import check_protocols, require_package, without_password

_REDIS = ("redis", "rediss")
_DID = "nothing was recorded"


def parse_location(name: str, value: Any) -> str | None:
    """Validate a location: returns an absolute path or an address; None, which stands for memory, for "".

    Args:
        name: The name of the argument, for errors.
        value: The user's value.

    Raises:
        InvalidArgumentError: the value is not a valid location, or holds the password of a store of files.
        FailedPreconditionError: a package that such an address needs is not installed.
    """
    if isinstance(value, str) and not value:
        return None
    if isinstance(value, str) and "://" in value:
        return _parse_url(name, text(name, value))
    return _parse_directory(name, path(name, value))


def _parse_directory(name: str, given: str) -> str:
    directory = os.path.abspath(given)
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise InvalidArgumentError(
            f"`{name}` is {directory}, which is a file", hint="pass a directory: a recording consists of many files"
        )
    return directory


def _parse_url(name: str, url: str) -> str:
    if _scheme(url) in _REDIS:
        require_package("redis", f"recording to {_scheme(url)}://", "pip install 'dsnb[redis]'", _DID)
        try:
            _ = urlsplit(url).port
        except ValueError as error:
            raise InvalidArgumentError(
                f"`{name}` has no port that could be one: {error}", hint="redis://host:6379/0"
            ) from None
    else:
        _refuse_password(name, url)
        check_protocols(name, url, "recording to", _DID)
    return url


def _refuse_password(name: str, url: str) -> None:
    if any(urlsplit(part).password is not None for part in url.split("::")):
        raise InvalidArgumentError(
            f"`{name}` holds a password: {without_password(url)}",
            did=f"{_DID}: the pipeline, which workers get and a work folder keeps, would hold it too",
            hint="leave it out; put it where the store's client looks for it, for instance in environment variables or "
            "in fsspec's configuration (~/.config/fsspec/)",
        )


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def check_location(where: str) -> None:
    """Check that a directory can be read; other locations are not checked.

    Raises:
        FailedPreconditionError: a newer version of dsnb has recorded there.
    """
    if "://" not in where:
        with contextlib.suppress(OSError):  # it may be readable later, and stops no pass if it is not
            check_format(where)


def supports_expiry(where: str) -> bool:
    """Whether recordings in this location can expire when they are not read."""
    return "://" not in where or _scheme(where) in _REDIS


def recordings_at(
    where: str, key: str, about: RecordingMetadata, *, limit: int | None, expire_s: float | None
) -> PipelineRecordings:
    """The recordings of one pipeline in a location."""
    if "://" not in where:
        return DirectoryRecordings(where, key, about, limit=limit, expire_s=expire_s)
    if _scheme(where) in _REDIS:
        from dsnb.cache.recordings.redis import RedisRecordings

        return RedisRecordings(where, key, about, limit=limit, expire_s=expire_s)
    from dsnb.cache.recordings.remote import RemoteRecordings

    return RemoteRecordings(where, key, about, limit=limit)

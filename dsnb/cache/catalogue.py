"""What is recorded below a directory: listed, compared with its digests, removed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from dsnb.cache import files
from dsnb.cache.about import from_json
from dsnb.cache.directory import DirectoryStore
from dsnb.cache.filesystem import filesystem_of
from dsnb.cache.recording import Log, Piece, Record, decode
from dsnb.cache.shelf import check_format, evict, exclusively, folders, numbers, size_of, used
from dsnb.cache.split_log import SplitLog
from dsnb.dataclass import dataclass
from dsnb.errors import DataLossError, FailedPreconditionError, NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The newest recording of one pipeline.

    Attributes:
        key: The name of its folder.
        pipeline: The pipeline in one line.
        state: "complete", "partial", or "damaged" where not even its log can be read.
        elements: How many are recorded.
        nbytes: On the disk, with older recordings of the same pipeline.
        in_use: Whether somebody reads it now.
        used: When it was last read, by a counter: more is later.
    """

    key: str
    pipeline: str
    state: str
    elements: int
    nbytes: int
    in_use: bool
    used: int


def entries(root: str) -> list[Entry]:
    """All recordings, the one that was read last first.

    Raises:
        NotFoundError: there is no such directory.
        FailedPreconditionError: a newer version of dsnb has recorded there.
    """
    return sorted(map(_entry, _folders(root)), key=lambda entry: -entry.used)


def _folders(root: str) -> list[str]:
    if not os.path.isdir(root):
        raise NotFoundError(f"there is no directory {root}", hint="name the one that was given to `cache`")
    check_format(root)
    return folders(os.path.abspath(root))


def _entry(folder: str) -> Entry:
    about = from_json(files.read(os.path.join(folder, "about.json")) or b"")
    store = _opened(folder)
    try:
        log = _log_of(store)
        state, elements = "complete" if log.ended and not log.abandoned else "partial", log.elements
    except DataLossError:
        state, elements = "damaged", 0
    finally:
        store.close()
    with exclusively(folder) as alone:
        return Entry(
            key=os.path.basename(folder),
            pipeline=about.pipeline if about is not None else "?",
            state=state,
            elements=elements,
            nbytes=size_of(folder),
            in_use=not alone,
            used=used(folder),
        )


def _opened(folder: str) -> DirectoryStore:
    return DirectoryStore(os.path.join(folder, f"{numbers(folder)[-1]:06d}"), local=filesystem_of(folder).local)


def _log_of(store: DirectoryStore) -> Log | SplitLog:
    records: list[Record] = []
    while (data := store.read(len(records))) is not None:
        records.append(decode(data))
    log = SplitLog() if any(isinstance(record, Piece) for record in records) else Log()
    for record in records:
        log.apply(record)
    return log


def verify(root: str, key: str | None = None) -> Iterator[tuple[str, str]]:
    """Read all that is recorded and compare it with its digests.

    Args:
        root: The directory.
        key: The beginning of the key of one recording; None for all.

    Yields:
        For each recording its key, and what is wrong with it; empty where nothing is.

    Raises:
        NotFoundError: there is none of that key.
    """
    for folder in _chosen(root, [key] if key else []):
        yield os.path.basename(folder), _problem(folder)


def _problem(folder: str) -> str:
    store = _opened(folder)
    try:
        for place in _log_of(store).places:
            store.verify(place)
    except DataLossError as damage:
        return damage.what
    finally:
        store.close()
    return ""


def remove(root: str, keys: Sequence[str]) -> int:
    """Remove recordings.

    Args:
        root: The directory.
        keys: The beginnings of their keys; none for all.

    Returns:
        The bytes that became free.

    Raises:
        NotFoundError: there is none of a key.
        FailedPreconditionError: somebody reads one; the others are removed.
        PermissionDeniedError: the directory may only be read.
    """
    chosen = _chosen(root, keys)
    try:
        freed = {folder: evict(folder) for folder in chosen}
    except OSError as error:
        raise files.page(error, f"removing recordings from {root}") from error
    busy = [os.path.basename(folder) for folder in chosen if os.path.isdir(folder)]
    if busy:
        raise FailedPreconditionError(
            f"{len(busy)} of {len(chosen)} recordings are being read: {', '.join(busy)}",
            did=f"the others were removed, {sum(freed.values()):,} bytes",
            hint="end the runs that read them first",
        )
    return sum(freed.values())


def _chosen(root: str, keys: Sequence[str]) -> list[str]:
    found = _folders(root)
    if not keys:
        return found
    chosen = [folder for folder in found if any(os.path.basename(folder).startswith(key) for key in keys)]
    for key in keys:
        if not any(os.path.basename(folder).startswith(key) for folder in chosen):
            raise NotFoundError(
                f"nothing in {root} has a key that begins with {key!r}", hint="dsnb cache ls shows them"
            )
    return chosen

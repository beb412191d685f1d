"""What runs do to recordings while something kills or stops them, and how to look at what they left.

Each scene has a scenario, which victims play, and an end, which the next runs play to see that all is well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import dsnb
from dsnb.cache.recordings.catalogue import verify
from dsnb.cache.recordings.recording import Chunk, decode_record
from dsnb.cache.recordings.removal import size_of
from dsnb.pipeline.operation import BuildContext
from tests.support.waiting import wait_for

LENGTH = 40
CHUNK = 8
LEASE_S = 0.2
FINISHED = {"manifest", "dsnb-recordings.json", "about.json", "used", "lock"}

Passing = tuple[str, str]


def dataset(
    folder: Path, where: str = "", *, width: int = 10, first: int = 0, limit: int | None = None, beats: bool = False
) -> dsnb.Dataset:
    """A pipeline that notes each call of its function in a file; with `beats` it takes until a pulse was shown."""
    calls, cache = str(folder / "calls"), where or str(folder / "cache")

    def row(x: int) -> np.ndarray:
        with open(calls, "ab", buffering=0) as file:
            file.write(b".")
        if beats and x == LENGTH // 2:
            wait_for(lambda: pulse_shown(cache), what="a beat", timeout=20.0)
        return np.arange(width) + x

    numbers = dsnb.Dataset.range(first, first + LENGTH)
    return numbers.map(row).cache(cache, chunk_bytes=CHUNK * 8 * width, lease_seconds=LEASE_S, limit_bytes=limit)


def pulse_shown(cache: str) -> bool:
    """Whether a writer has shown that it lives."""
    if not cache.startswith("redis://"):
        return any(Path(cache).glob("*/*/beat/*"))
    with on_server(cache) as client:
        return any(client.scan_iter("dsnb:*:beat"))


@contextmanager
def on_server(url: str) -> Iterator[Any]:
    """A connection to look with."""
    import redis

    client = redis.Redis.from_url(url)
    try:
        yield client
    finally:
        client.close()
        client.connection_pool.disconnect()


def check(elements: Iterator[np.ndarray], count: int, first: int = 0) -> None:
    """Look whether these are the first elements, and how many there are."""
    number = -1
    for number, element in enumerate(elements):
        wanted = first + number
        assert (element[0], element[-1]) == (wanted, wanted + len(element) - 1), f"element {number} is {element}"
    assert number == count - 1, f"{number + 1} elements"


def calls_of(folder: Path) -> int:
    path = folder / "calls"
    return path.stat().st_size if path.exists() else 0


def leftovers(folder: Path) -> list[str]:
    """Files that no finished recording has."""
    files = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    found = [path for path in files if path.name not in FINISHED and path.suffix != ".seg"]
    for shelf in (path for path in (folder / "cache").iterdir() if path.is_dir()):
        *older, newest = sorted(shelf.glob("[0-9]*"))
        manifest = newest / "manifest"
        text = manifest.read_text() if manifest.exists() else ""
        found += [*older, *(path for path in (newest / "seg").iterdir() if path.name not in text)]
    return list(map(str, found))


def damaged(folder: Path) -> list[str]:
    """What is visible and not right."""
    return [problem for _, problem in verify(str(folder / "cache")) if problem]


class Alone:
    """A run that stops early, and one that goes on."""

    before: tuple[Passing, ...] = ()
    """Where victims die before the scenario begins, so that there is something to clear away."""

    def most_calls(self, struck: int, deaths: int) -> int:
        """How often the function may run in runs that were struck, so many of which died, and one that was not."""
        return LENGTH + CHUNK * deaths

    def play(self, folder: Path) -> None:
        self._read(folder, LENGTH // 3)
        self._read(folder, LENGTH)

    def end(self, folder: Path) -> None:
        self._read(folder, LENGTH)

    def _read(self, folder: Path, count: int) -> None:
        check(iter(dataset(folder, beats=True).take(-1 if count == LENGTH else count)), count)

    def wrong(self, folder: Path) -> str:
        """What there is that should not be."""
        found = [*damaged(folder), *leftovers(folder)]
        return f"left over or damaged: {found}" if found else ""


class Crowded(Alone):
    """Three pipelines in a directory that holds two: one is evicted for the next."""

    before = (("segment sync", "before"), ("used rename", "before"))
    width = 1000
    limit = 900_000

    def most_calls(self, struck: int, deaths: int) -> int:
        """What was evicted is made again by the next run, by none twice; those before died with their first chunk."""
        return CHUNK * len(self.before) + 3 * LENGTH * (struck + 1)

    def play(self, folder: Path) -> None:
        for first in (0, 100, 200):
            ds = dataset(folder, width=self.width, first=first, limit=self.limit)
            check(iter(ds), LENGTH, first)

    def end(self, folder: Path) -> None:
        self.play(folder)

    def wrong(self, folder: Path) -> str:
        size = sum(size_of(str(path)) for path in (folder / "cache").iterdir() if path.is_dir())
        found = f"{size} bytes are over the limit" if size > self.limit else ""
        return found or super().wrong(folder)


class _Splits:
    """All splits in runs of a few, as a dispatcher hands them out."""

    refused = False

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        return iter([(first, first + 5) for first in range(0, LENGTH, 5)])

    def repetition(self, provider: int) -> int:
        return 0


class Splits(Alone):
    """One worker after the other that records split by split."""

    def _read(self, folder: Path, count: int) -> None:
        stage = dataset(folder).operation.build(BuildContext(entropy=0, splits=_Splits(), shared_order=True))
        try:
            found: list[np.ndarray] = []
            while len(found) < count and len(run := stage.pull(count - len(found))):
                found += list(run)
            check(iter(found), count)
        finally:
            stage.close()


class OnRedis(Alone):
    """As alone, on a server."""

    def __init__(self, url: str) -> None:
        import dsnb.cache.recordings.redis  # noqa: F401 - here, and not in each child

        self._url = url

    def _read(self, folder: Path, count: int) -> None:
        ds = dataset(folder, self._where(folder), beats=True)
        check(iter(ds.take(-1 if count == LENGTH else count)), count)

    def _where(self, folder: Path) -> str:
        # A database for each folder, which the key of a recording does not know.
        return f"{self._url.rpartition('/')[0]}/{int((folder / 'database').read_text() or 0)}"

    def wrong(self, folder: Path) -> str:
        """What is not named by a record and would never expire, or is named and would."""
        with on_server(self._where(folder)) as client:
            logs = list(client.scan_iter("dsnb:*:log"))
            records = [
                decode_record(data) for log in logs for name, data in client.hgetall(log).items() if name != b"id"
            ]
            named = {f"dsnb:data:{place.name}:0" for record in records if isinstance(record, Chunk)
                     for place in record.frames}  # fmt: skip
            kept = {key.decode() for key in client.scan_iter("dsnb:data:*") if client.pttl(key) == -1}
            beats = list(client.scan_iter("dsnb:*:beat"))
            found = [*sorted(named ^ kept), *map(str, beats), *map(str, logs[1:])]
            client.flushdb()
        return f"left over or not kept: {found}" if found else ""

"""Recordings on a Redis or Valkey server, for runs on several hosts that share no disk.

    dsnb:{<key>}:newest        the number of the newest recording
    dsnb:{<key>}:about         the pipeline
    dsnb:{<key>}:<n>:log       a hash: the slots, and under "id" a random word that was made with it
    dsnb:{<key>}:<n>:beat      a hash: the holders' pulses by epoch, and under "asked" what waiting readers want
    dsnb:data:<random>         the bytes of one frame, or of 4 MiB of it

A slot is claimed by a script that looks at the log's word and length, so that what a server forgot (it was restarted
without persistence, or evicts) is never mistaken for something new. Data have an expiry until they are committed.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
)
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as TooSlow
from redis.retry import Retry

from dsnb.cache.about import About, from_json, news
from dsnb.cache.backends import Gone, Unwritable, over_limit, warn
from dsnb.cache.faults import Point
from dsnb.cache.frames import decode as decode_frame
from dsnb.cache.frames import digest_of, encode
from dsnb.cache.recording import Chunk, Piece, Place, decode
from dsnb.elements.frame import Frame
from dsnb.errors import (
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)

T = TypeVar("T")

STRING: Final = 4 << 20
_UNCOMMITTED_MS: Final = 600_000
_PATIENCE_S: Final = 15.0
"""How long a server may be away, as for a restart, before it counts as gone."""
_ANSWER_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0

_ASKED: Final = "asked"

_answered: dict[str, bool] = {}
"""The addresses, with their passwords, that have answered this process; and whether they do still."""

_PUT = Point("redis put")
_RECORD = Point("redis record")
_KEEP = Point("redis keep")
_BEAT = Point("redis beat")
_FORGET = Point("redis forget")

_CLAIM: Final = """
local log, newest = KEYS[1], KEYS[2]
local slot, record, word, number, expiry = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local there = redis.call('HGET', log, 'id')
if slot == 0 then
  if there then return 0 end
  redis.call('HSET', log, 'id', word)
  if number > (tonumber(redis.call('GET', newest) or '0') or 0) then redis.call('SET', newest, number) end
elseif there ~= word then
  return -1
elseif redis.call('HLEN', log) ~= slot + 1 then
  return 0
end
redis.call('HSET', log, slot, record)
if expiry > 0 then redis.call('PEXPIRE', log, expiry); redis.call('PEXPIRE', newest, expiry) end
return 1
"""


class Server:
    """A connection to one server that outlasts a restart.

    Never to be used in the main thread of a process that may be interrupted: hiredis crashes when a KeyboardInterrupt
    comes while it packs a command, and a connection whose reply nobody has read gives it to the next command.

    Args:
        url: `redis://` or `rediss://`, with a password if it asks for one.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
        self.place = f"{parts.scheme}://{self.address}{parts.path or '/0'}"
        self._url = url
        # `call` tries again itself, and says how long.
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0)
        )

    def call(self, act: Callable[[Any], T], *, wait: bool = True) -> T:
        """Ask the server; while it cannot be reached, again and again, as for a restart.

        Args:
            act: What to ask.
            wait: Whether to ask again. A server that was waited for in vain, or has never answered, is asked once.

        Raises:
            Unwritable: it refuses, or is not there.
            PermissionDeniedError: it refuses the name or the password, and has never answered this process.
        """
        waits = wait and _answered.get(self._url, False)
        deadline = time.monotonic() + (_PATIENCE_S if waits else 0.0)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                result = act(self._client)
                _answered[self._url] = True
                return result
            except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
                if self._url in _answered:
                    raise Unwritable(self._refused()) from error
                raise self._refused() from error
            except OutOfMemoryError as error:
                raise Unwritable(self._full()) from error
            except (Unreachable, TooSlow, BusyLoadingError) as error:
                if time.monotonic() >= deadline:
                    if waits:
                        _answered[self._url] = False
                    raise Unwritable(self._gone(error)) from error
            except RedisError as error:
                raise Unwritable(UnavailableError(f"the Redis server {self.address} answered: {error}")) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _refused(self) -> PermissionDeniedError:
        return PermissionDeniedError(
            f"the Redis server {self.address} asks for another user name or password",
            did="nothing was recorded or read there",
            hint="put them into the address: redis://user:password@host:port/0",
        )

    def _full(self) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            f"the Redis server {self.address} is full (maxmemory is {self.setting('maxmemory')} bytes)",
            did="what is recorded stays; the rest of the pass runs the pipeline",
            hint="raise maxmemory, or record to another place",
        )

    def _gone(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"the Redis server {self.address} cannot be reached ({type(error).__name__})",
            did="nothing was recorded or read there",
            hint="look whether it runs, and whether host and port are right",
        )

    def setting(self, name: str) -> str:
        """A setting of the server; "unknown" where it may not be asked for."""
        try:
            found: dict[Any, Any] = self._client.config_get(name)
        except RedisError:
            return "unknown"
        return str(found.get(name, "unknown"))

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._client.connection_pool.disconnect()


class RedisStore:
    """One recording.

    Args:
        server: Where.
        key: Of the pipeline.
        number: Of the recording.
        limit: Most bytes of one recording; None for no limit.
        expire_s: How long what nobody reads is kept; None for ever.
    """

    shared = True
    remote = True
    poll = 0.25

    def __init__(self, server: Server, key: str, number: int, *, limit: int | None, expire_s: float | None) -> None:
        self.place = f"{server.place} (recording {key[:12]}, {number})"
        self._server = server
        self._number = number
        self._newest = f"dsnb:{{{key}}}:newest"
        self._log = f"dsnb:{{{key}}}:{number}:log"
        self._beat = f"dsnb:{{{key}}}:{number}:beat"
        self._limit = limit
        self._expiry = 0 if expire_s is None else max(1, int(1000 * expire_s))
        self._word = b""
        self._nbytes = 0

    # ---- the log

    def read(self, slot: int) -> bytes | None:
        word, record = self._server.call(lambda client: client.hmget(self._log, ["id", slot]))
        if self._word and word != self._word:
            raise Gone(self._forgotten())
        self._word = word or b""
        if record is not None:
            self._count(record)
        return bytes(record) if record is not None else None

    def claim(self, slot: int, record: bytes) -> bool:
        word = self._word if slot else secrets.token_hex(16).encode()
        arguments = [slot, record, word, self._number, self._expiry]
        with _RECORD:
            made = self._server.call(lambda client: client.eval(_CLAIM, 2, self._log, self._newest, *arguments))
        if made < 0:
            raise Gone(self._forgotten())
        if made and not slot:
            self._word = word
            self._retire_older()
        if made:
            self._count(record)
            self._keep([record])
        return bool(made)

    def _forgotten(self) -> DataLossError:
        return DataLossError(
            f"what was recorded on the Redis server {self._server.address} is gone: "
            "it was restarted, emptied or evicts",
            did="it is recorded anew",
            hint="switch persistence on (appendonly yes), or give it more memory",
        )

    def _count(self, data: bytes) -> None:
        record = decode(data)
        if isinstance(record, Chunk | Piece):
            self._nbytes += sum(place.nbytes for place in record.frames)

    # ---- the frames

    def put(self, frames: Sequence[Frame]) -> tuple[Place, ...]:
        return tuple(map(self._put, frames))

    def _put(self, frame: Frame) -> Place:
        buffers, nbytes, digest = encode(frame)
        if self._limit is not None and self._nbytes + nbytes > self._limit:
            raise over_limit(self._server.place, self._limit)
        data = memoryview(b"".join(buffers))
        name = secrets.token_hex(12)
        for number, first in enumerate(range(0, nbytes, STRING)):
            self._put_piece(_data(name, number), bytes(data[first : first + STRING]))
        return Place(name=name, offset=0, nbytes=nbytes, count=frame.count, digest=digest)

    def _put_piece(self, name: str, piece: bytes) -> None:
        with _PUT:
            self._server.call(lambda client: client.set(name, piece, px=_UNCOMMITTED_MS))

    def frame(self, place: Place) -> Frame:
        return decode_frame(self._fetch(place))

    def verify(self, place: Place) -> None:
        self._fetch(place)

    def _fetch(self, place: Place) -> np.ndarray[Any, Any]:
        pieces: list[bytes] = []
        for name in _names(place):
            piece = self._piece(name)
            if piece is None:
                raise self._dropped()
            pieces.append(piece)
        data = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
        if len(data) != place.nbytes or digest_of(data) != place.digest:
            raise DataLossError(f"{place.name} on the Redis server {self._server.address} is damaged")
        return data

    def _piece(self, name: str) -> bytes | None:
        if self._expiry:
            return self._server.call(lambda client: client.getex(name, px=self._expiry))  # type: ignore[no-any-return]
        return self._server.call(lambda client: client.get(name))  # type: ignore[no-any-return]

    def _dropped(self) -> DataLossError:
        evicted = self._server.call(lambda client: client.info("stats")).get("evicted_keys", "?")
        return DataLossError(
            f"the Redis server {self._server.address} has dropped a part of what was recorded "
            f"(it has evicted {evicted} keys)",
            hint="give it more memory, or maxmemory-policy noeviction",
        )

    # ---- what dead writers left

    def left_behind(self) -> Sequence[str]:
        """Nothing: what is not committed expires."""
        return ()

    def tidy(self, records: Sequence[bytes], left: Sequence[str]) -> None:
        self._keep(records)

    def settle(self, records: Sequence[bytes]) -> None:
        self._keep(records)
        with _FORGET:
            self._server.call(lambda client: client.delete(self._beat))

    def _keep(self, records: Sequence[bytes]) -> None:
        """Let what is committed live as long as it should; a writer may have died before it did so."""
        self._expire(_all_names(records), self._expiry)

    def _retire_older(self) -> None:
        """Let the recording before this one go, when those who are reading it have had time to end."""
        log = self._log.replace(f":{self._number}:log", f":{self._number - 1}:log")
        found = self._server.call(lambda client: client.hgetall(log))
        with contextlib.suppress(DataLossError):  # it may have been given up because of that
            names = _all_names([record for name, record in found.items() if name != b"id"])
            self._expire([*names, log] if found else [], _UNCOMMITTED_MS)

    def _expire(self, names: Sequence[str], after_ms: int) -> None:
        def act(client: Any) -> None:
            with client.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.pexpire(name, after_ms) if after_ms else pipeline.persist(name)
                pipeline.execute()

        if names:
            with _KEEP:
                self._server.call(act)

    # ---- the pulse

    def beat(self, epoch: int) -> None:
        with contextlib.suppress(Unwritable, DsnbError):  # the next to write finds out
            with _BEAT:
                self._server.call(lambda client: client.hincrby(self._beat, str(epoch), 1), wait=False)
            self._server.call(lambda client: client.pexpire(self._beat, _UNCOMMITTED_MS), wait=False)

    def pulse(self, epoch: int) -> object:
        return self._server.call(lambda client: client.hget(self._beat, str(epoch)))

    def ask(self, position: int) -> None:
        with contextlib.suppress(Unwritable):  # the writer commits at its own pace
            if self.asked() < position:
                self._server.call(lambda client: client.hset(self._beat, _ASKED, position))

    def asked(self) -> int:
        return _number(self._server.call(lambda client: client.hget(self._beat, _ASKED)), -1)

    def close(self) -> None:
        """The shelf closes the connections."""


def _number(data: bytes | None, otherwise: int) -> int:
    """A number that a server keeps; another one if that is gone, or was never written by this class."""
    return int(data) if data is not None and data.isdigit() else otherwise


def _data(name: str, number: int) -> str:
    return f"dsnb:data:{name}:{number}"


def _names(place: Place) -> list[str]:
    return [_data(place.name, number) for number in range(-(-place.nbytes // STRING))]


def _all_names(records: Sequence[bytes]) -> list[str]:
    chunks = [record for record in map(decode, records) if isinstance(record, Chunk | Piece)]
    return [name for chunk in chunks for place in chunk.frames for name in _names(place)]


def _readable_names(records: Sequence[bytes]) -> Iterator[str]:
    for data in records:
        with contextlib.suppress(DataLossError, FailedPreconditionError):
            yield from _all_names([data])


class RedisShelf:
    """The recordings of one pipeline.

    Args:
        url: The server.
        key: The digest of all that the recording depends on.
        about: What that is.
        limit: Most bytes of one recording; None for no limit.
        expire_s: How long what nobody reads is kept; None for ever.
    """

    def __init__(
        self, url: str, key: str, about: About, *, limit: int | None = None, expire_s: float | None = None
    ) -> None:
        self.key = (url, key)
        self._url = url
        self._key = key
        self._about = about
        self._limit = limit
        self._expire_s = expire_s
        self._server: Server | None = None

    def _connected(self) -> Server:
        if self._server is None:
            self._server = Server(self._url)
        return self._server

    def newest(self) -> int:
        try:
            found = self._connected().call(lambda client: client.get(f"dsnb:{{{self._key}}}:newest"))
        except BaseException:
            self.close()
            raise
        return _number(found, 0)

    def open(self, number: int) -> RedisStore:
        return RedisStore(self._connected(), self._key, number, limit=self._limit, expire_s=self._expire_s)

    def explain(self) -> str:
        """Called before something new is recorded; so here a server that evicts is told, too."""
        server = self._connected()
        mine = f"dsnb:{{{self._key}}}:about"
        try:
            found = server.call(lambda client: [client.get(key) for key in client.scan_iter("dsnb:*:about", 1000)])
            server.call(lambda client: client.set(mine, self._about.to_json()))
        except Unwritable:
            return ""  # what follows tells
        policy = server.setting("maxmemory-policy")
        if policy.startswith("allkeys") or (policy.startswith("volatile") and self._expire_s is not None):
            warn(
                f"the Redis server {server.address} may evict what is recorded (maxmemory-policy is {policy})",
                "what it drops is noticed and recorded anew",
                "set maxmemory-policy noeviction",
            )
        return news(server.place, self._about, filter(None, map(from_json, filter(None, found))))

    def keys(self) -> list[str]:
        """The keys of all pipelines that are recorded on the server."""
        found = self._connected().call(lambda client: list(client.scan_iter("dsnb:{*}:newest", 1000)))
        return [name.decode().removeprefix("dsnb:{").removesuffix("}:newest") for name in found]

    def about(self) -> bytes | None:
        """What was noted of the pipeline."""
        return self._connected().call(lambda client: client.get(f"dsnb:{{{self._key}}}:about"))  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Remove the recordings of this pipeline."""

        def act(client: Any) -> None:
            mine = list(client.scan_iter(f"dsnb:{{{self._key}}}:*", 1000))
            records = [data for log in mine if log.endswith(b":log") for data in client.hvals(log)]
            # The newest number first: then nobody begins to read what is being removed.
            for name in (f"dsnb:{{{self._key}}}:newest", *mine, *_readable_names(records)):
                client.unlink(name)

        self._connected().call(act)

    def foreign(self) -> list[str]:
        """Nothing: names on the server that begin with `dsnb:` are dsnb's."""
        return []

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

"""Recordings on a Redis or Valkey server, for runs on several hosts that share no disk.

    dsnb:{<key>}:newest        the number of the newest recording
    dsnb:{<key>}:about         the pipeline
    dsnb:{<key>}:<n>:log       a hash: the slots, and under "id" a random id that was made with the log
    dsnb:{<key>}:<n>:beat      a hash: the holders' heartbeats by epoch, and under "asked" the element that readers want
    dsnb:data:<random>         the bytes of one frame, or 4 MiB of it

A slot is claimed by a script that checks the log's id and length. So a log that the server has forgotten (it was
restarted without persistence, or evicts) is never mistaken for a new one. Uncommitted data expire.
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

from dsnb.cache.recordings.backends import RecordingLost, StoreFailed, limit_exceeded, warn
from dsnb.cache.recordings.frames import decode_frame, digest_of, encode_frame
from dsnb.cache.recordings.metadata import RecordingMetadata, first_difference, parse_metadata
from dsnb.cache.recordings.recording import Chunk, FrameRef, SplitChunk, decode_record, frame_bytes
from dsnb.elements.frame import Frame
from dsnb.errors import (
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.storage.failpoints import Failpoint

T = TypeVar("T")

STRING_BYTES: Final = 4 << 20
_UNCOMMITTED_MS: Final = 600_000
_RETRY_S: Final = 15.0
"""How long a server may be unreachable, for example during a restart, before it counts as gone."""
_REPLY_TIMEOUT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0

_REQUEST_FIELD: Final = "asked"

_reachable: dict[str, bool] = {}
"""Addresses, with passwords, of the servers that have answered this process, and whether they were reachable last."""

_PUT = Failpoint("redis put", error=None)
_RECORD = Failpoint("redis record", error=None)
_KEEP = Failpoint("redis keep", error=None)
_HEARTBEAT = Failpoint("redis beat", error=None)
_FORGET = Failpoint("redis forget", error=None)

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


class RedisConnection:
    """A connection to one server that survives a restart of the server.

    Must not be used in the main thread of a process that may be interrupted: hiredis crashes if a KeyboardInterrupt
    arrives while it packs a command, and a connection with an unread reply returns that reply to the next command.

    Args:
        url: `redis://` or `rediss://`, with a password if the server requires one.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
        self.location = f"{parts.scheme}://{self.address}{parts.path or '/0'}"
        self._url = url
        # No retries in the library: `call` retries itself, and knows for how long.
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=_REPLY_TIMEOUT_S, socket_connect_timeout=_REPLY_TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )

    def call(self, act: Callable[[Any], T], *, wait: bool = True) -> T:
        """Run a command; retry while the server cannot be reached, for example during a restart.

        Args:
            act: Called with the client; runs the command.
            wait: Whether to retry. A server that stayed unreachable last time, or has never answered, is tried once.

        Raises:
            StoreFailed: the server refuses, is full or cannot be reached.
            PermissionDeniedError: the server refuses the user name or password, and has never answered this process.
        """
        waits = wait and _reachable.get(self._url, False)
        deadline = time.monotonic() + (_RETRY_S if waits else 0.0)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                result = act(self._client)
                _reachable[self._url] = True
                return result
            except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
                if self._url in _reachable:
                    raise StoreFailed(self._permission_error()) from error
                raise self._permission_error() from error
            except OutOfMemoryError as error:
                raise StoreFailed(self._full_error()) from error
            except (Unreachable, TooSlow, BusyLoadingError) as error:
                if time.monotonic() >= deadline:
                    if waits:
                        _reachable[self._url] = False
                    raise StoreFailed(self._unreachable_error(error)) from error
                # Only these errors are retried: they end when the server has restarted.
            except RedisError as error:
                raise StoreFailed(UnavailableError(f"the Redis server {self.address} answered: {error}")) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _permission_error(self) -> PermissionDeniedError:
        return PermissionDeniedError(
            f"the Redis server {self.address} rejects the user name or the password",
            did="nothing was recorded or read there",
            hint="put them into the address: redis://user:password@host:port/0",
        )

    def _full_error(self) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            f"the Redis server {self.address} is full (maxmemory is {self.setting('maxmemory')} bytes)",
            did="what is recorded stays; the rest of the pass runs the pipeline",
            hint="raise maxmemory, or record to another place",
        )

    def _unreachable_error(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"the Redis server {self.address} cannot be reached ({type(error).__name__})",
            did="nothing was recorded or read there",
            hint="check that it runs, and that host and port are right",
        )

    def setting(self, name: str) -> str:
        """A setting of the server; "unknown" if this user may not read it."""
        try:
            found: dict[Any, Any] = self._client.config_get(name)
        except RedisError:
            return "unknown"
        return str(found.get(name, "unknown"))

    def close(self) -> None:
        """Close all connections to the server."""
        self._client.close()
        self._client.connection_pool.disconnect()


class RedisStore:
    """One recording on a server.

    Args:
        connection: The connection to the server.
        key: The key of the pipeline.
        number: The number of the recording.
        limit: The largest size of one recording in bytes; None for no limit.
        expire_s: After how many seconds without a reader the recording expires; None for never.
    """

    shared = True
    remote = True
    max_poll_s = 0.25

    def __init__(
        self, connection: RedisConnection, key: str, number: int, *, limit: int | None, expire_s: float | None
    ) -> None:
        self.location = f"{connection.location} (recording {key[:12]}, {number})"
        self._connection = connection
        self._number = number
        self._newest_key = f"dsnb:{{{key}}}:newest"
        self._log_key = f"dsnb:{{{key}}}:{number}:log"
        self._heartbeat_key = f"dsnb:{{{key}}}:{number}:beat"
        self._limit = limit
        self._expiry = 0 if expire_s is None else max(1, int(1000 * expire_s))
        self._log_id = b""
        self._nbytes = 0

    # ---- the log

    def read(self, slot: int) -> bytes | None:
        log_id, record = self._connection.call(lambda client: client.hmget(self._log_key, ["id", slot]))
        if self._log_id and log_id != self._log_id:
            raise RecordingLost(self._forgotten_error())
        self._log_id = log_id or b""
        if record is not None:
            self._nbytes += frame_bytes(record)
        return bytes(record) if record is not None else None

    def claim(self, slot: int, record: bytes) -> bool:
        log_id = self._log_id if slot else secrets.token_hex(16).encode()
        arguments = [slot, record, log_id, self._number, self._expiry]
        with _RECORD:
            made = self._connection.call(
                lambda client: client.eval(_CLAIM, 2, self._log_key, self._newest_key, *arguments)
            )
        if made < 0:
            raise RecordingLost(self._forgotten_error())
        if made and not slot:
            self._log_id = log_id
            self._expire_previous()
        if made:
            self._nbytes += frame_bytes(record)
            self._extend_expiry([record])
        return bool(made)

    def _forgotten_error(self) -> DataLossError:
        return DataLossError(
            f"what was recorded on the Redis server {self._connection.address} is gone: "
            "it was restarted, emptied or evicts",
            did="it is recorded again",
            hint="switch persistence on (appendonly yes), or give it more memory",
        )

    # ---- the frames

    def write_frames(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        return tuple(map(self._put, frames))

    def _put(self, frame: Frame) -> FrameRef:
        buffers, nbytes, digest = encode_frame(frame)
        if self._limit is not None and self._nbytes + nbytes > self._limit:
            raise limit_exceeded(self._connection.location, self._limit)
        data = memoryview(b"".join(buffers))
        name = secrets.token_hex(12)
        for number, first in enumerate(range(0, nbytes, STRING_BYTES)):
            self._write_string(_data_key(name, number), bytes(data[first : first + STRING_BYTES]))
        return FrameRef(name=name, offset=0, nbytes=nbytes, count=frame.count, digest=digest)

    def _write_string(self, name: str, data: bytes) -> None:
        with _PUT:
            self._connection.call(lambda client: client.set(name, data, px=_UNCOMMITTED_MS))

    def read_frame(self, ref: FrameRef) -> Frame:
        return decode_frame(self._fetch(ref))

    def verify(self, ref: FrameRef) -> None:
        self._fetch(ref)

    def _fetch(self, ref: FrameRef) -> np.ndarray[Any, Any]:
        parts: list[bytes] = []
        for name in _data_keys(ref):
            part = self._read_string(name)
            if part is None:
                raise self._evicted_error()
            parts.append(part)
        data = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        if len(data) != ref.nbytes or digest_of(data) != ref.digest:
            raise DataLossError(f"{ref.name} on the Redis server {self._connection.address} is damaged")
        return data

    def _read_string(self, name: str) -> bytes | None:
        if self._expiry:
            return self._connection.call(lambda client: client.getex(name, px=self._expiry))  # type: ignore[no-any-return]
        return self._connection.call(lambda client: client.get(name))  # type: ignore[no-any-return]

    def _evicted_error(self) -> DataLossError:
        evicted = self._connection.call(lambda client: client.info("stats")).get("evicted_keys", "?")
        return DataLossError(
            f"the Redis server {self._connection.address} has dropped a part of what was recorded "
            f"(it has evicted {evicted} keys)",
            hint="give it more memory, or maxmemory-policy noeviction",
        )

    # ---- orphans and expiry

    def orphans(self) -> Sequence[str]:
        """Nothing: data that are not committed expire."""
        return ()

    def remove_orphans(self, records: Sequence[bytes], orphans: Sequence[str]) -> None:
        self._extend_expiry(records)

    def finalize(self, records: Sequence[bytes]) -> None:
        self._extend_expiry(records)
        with _FORGET:
            self._connection.call(lambda client: client.delete(self._heartbeat_key))

    def _extend_expiry(self, records: Sequence[bytes]) -> None:
        """Give committed data their final expiry; the writer may have died after the commit and before this."""
        self._set_expiry(_all_data_keys(records), self._expiry)

    def _expire_previous(self) -> None:
        """Let the previous recording expire, after its readers have had time to finish."""
        log = self._log_key.replace(f":{self._number}:log", f":{self._number - 1}:log")
        found = self._connection.call(lambda client: client.hgetall(log))
        with contextlib.suppress(DataLossError):  # a damaged record may be why it was abandoned
            names = _all_data_keys([record for name, record in found.items() if name != b"id"])
            self._set_expiry([*names, log] if found else [], _UNCOMMITTED_MS)

    def _set_expiry(self, names: Sequence[str], after_ms: int) -> None:
        def act(client: Any) -> None:
            with client.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.pexpire(name, after_ms) if after_ms else pipeline.persist(name)
                pipeline.execute()

        if names:
            with _KEEP:
                self._connection.call(act)

    # ---- the heartbeat

    def write_heartbeat(self, epoch: int) -> None:
        with contextlib.suppress(StoreFailed, DsnbError):  # the next write reports it
            with _HEARTBEAT:
                self._connection.call(lambda client: client.hincrby(self._heartbeat_key, str(epoch), 1), wait=False)
            self._connection.call(lambda client: client.pexpire(self._heartbeat_key, _UNCOMMITTED_MS), wait=False)

    def read_heartbeat(self, epoch: int) -> object:
        return self._connection.call(lambda client: client.hget(self._heartbeat_key, str(epoch)))

    def request_element(self, position: int) -> None:
        with contextlib.suppress(StoreFailed):  # the writer commits at its own pace
            if self.requested_element() < position:
                self._connection.call(lambda client: client.hset(self._heartbeat_key, _REQUEST_FIELD, position))

    def requested_element(self) -> int:
        return _number(self._connection.call(lambda client: client.hget(self._heartbeat_key, _REQUEST_FIELD)), -1)

    def close(self) -> None:
        """Keep the connection open: `RedisRecordings` closes it."""


def _number(data: bytes | None, otherwise: int) -> int:
    """A number that the server stores; `otherwise` if it is missing or is not a number."""
    return int(data) if data is not None and data.isdigit() else otherwise


def _data_key(name: str, number: int) -> str:
    return f"dsnb:data:{name}:{number}"


def _data_keys(ref: FrameRef) -> list[str]:
    return [_data_key(ref.name, number) for number in range(-(-ref.nbytes // STRING_BYTES))]


def _all_data_keys(records: Sequence[bytes]) -> list[str]:
    chunks = [record for record in map(decode_record, records) if isinstance(record, Chunk | SplitChunk)]
    return [name for chunk in chunks for ref in chunk.frames for name in _data_keys(ref)]


def _readable_data_keys(records: Sequence[bytes]) -> Iterator[str]:
    for data in records:
        with contextlib.suppress(DataLossError, FailedPreconditionError):
            yield from _all_data_keys([data])


class RedisRecordings:
    """The recordings of one pipeline on a server.

    Args:
        url: The address of the server.
        key: The digest of everything that the recording depends on.
        metadata: The pipeline, described for explanations.
        limit: The largest size of one recording in bytes; None for no limit.
        expire_s: After how many seconds without a reader a recording expires; None for never.
    """

    def __init__(
        self,
        url: str,
        key: str,
        metadata: RecordingMetadata,
        *,
        limit: int | None = None,
        expire_s: float | None = None,
    ) -> None:
        self.key = (url, key)
        self._url = url
        self._key = key
        self._metadata = metadata
        self._limit = limit
        self._expire_s = expire_s
        self._connection: RedisConnection | None = None

    def _connect(self) -> RedisConnection:
        if self._connection is None:
            self._connection = RedisConnection(self._url)
        return self._connection

    def newest_number(self) -> int:
        try:
            found = self._connect().call(lambda client: client.get(f"dsnb:{{{self._key}}}:newest"))
        except BaseException:
            self.close()
            raise
        return _number(found, 0)

    def open(self, number: int) -> RedisStore:
        return RedisStore(self._connect(), self._key, number, limit=self._limit, expire_s=self._expire_s)

    def explain_miss(self) -> str:
        """Why there is no recording; as it is called before a new one begins, it also warns if the server evicts."""
        connection = self._connect()
        mine = f"dsnb:{{{self._key}}}:about"
        try:
            found = connection.call(lambda client: [client.get(key) for key in client.scan_iter("dsnb:*:about", 1000)])
            connection.call(lambda client: client.set(mine, self._metadata.to_json()))
        except StoreFailed:
            return ""  # the operations that follow report the failure
        policy = connection.setting("maxmemory-policy")
        if policy.startswith("allkeys") or (policy.startswith("volatile") and self._expire_s is not None):
            warn(
                f"the Redis server {connection.address} may evict what is recorded (maxmemory-policy is {policy})",
                "dsnb notices what it drops, and records it again",
                "set maxmemory-policy noeviction",
            )
        return first_difference(
            connection.location, self._metadata, filter(None, map(parse_metadata, filter(None, found)))
        )

    def keys(self) -> list[str]:
        """The keys of all pipelines with a recording on the server."""
        found = self._connect().call(lambda client: list(client.scan_iter("dsnb:{*}:newest", 1000)))
        return [name.decode().removeprefix("dsnb:{").removesuffix("}:newest") for name in found]

    def metadata(self) -> bytes | None:
        """The metadata that were stored for the pipeline, as JSON; None if there are none."""
        return self._connect().call(lambda client: client.get(f"dsnb:{{{self._key}}}:about"))  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Remove the recordings of this pipeline."""

        def act(client: Any) -> None:
            mine = list(client.scan_iter(f"dsnb:{{{self._key}}}:*", 1000))
            records = [data for log in mine if log.endswith(b":log") for data in client.hvals(log)]
            # Remove the number of the newest recording first, so that no new reader opens what is being removed.
            for name in (f"dsnb:{{{self._key}}}:newest", *mine, *_readable_data_keys(records)):
                client.unlink(name)

        self._connect().call(act)

    def foreign_files(self) -> list[str]:
        """Nothing: all names on the server that begin with `dsnb:` belong to dsnb."""
        return []

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

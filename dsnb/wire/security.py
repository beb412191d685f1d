"""Authentication: tokens, and the proof that both ends of a call know the same one.

A registered pipeline is code that workers run, so every service has a token, and every call proves that its caller
knows it. The token itself is never sent: it is only the key of the proofs.

Theory of operation. Each server has an *instance id*. A dispatcher makes one each time it starts to listen, so a
dispatcher that is started again in its work folder, with the same token, has another id. A worker's id is its uid,
which readers get from the dispatcher. A call carries in its metadata a nonce, the digest of its request (if it sends a
single one), and

    HMAC-SHA256(token, "client" | method | instance id of the server | nonce | digest)

and the server's initial metadata carry

    HMAC-SHA256(token, "server" | its instance id | nonce)

The caller drops any reply that comes without this proof, and sends nothing beyond the first message of a stream before
it. If a caller does not know the dispatcher's instance id, the only call that it may make is Hello: the caller's proof
then names no instance, and the answer contains the id. A process that takes the port of a dead server therefore
receives the requests that were sent to the dead one, and learns nothing that it could use elsewhere; its answers are
ignored. The words "client" and "server" keep one side's proof from being used as the other's. Each part is preceded by
its length, so that two different calls never give the same bytes.

*Messages.* Every message except a single request (which the digest covers) ends in a tag over its number and its bytes:
keyed BLAKE2b, which is twice as fast as SHA-256 on large messages. HMAC derives the key from the token for this call
(method, instance id, nonce) and direction. A relay between the two ends can thus drop messages, end the call, or answer
it with an error; it cannot change, repeat, reorder or add a message. This matters when a dispatcher comes back at
another port and another process takes the old port and forwards the calls. The frames of a read have no tags, because
hashing them would halve the throughput. A reader's proof names the uid of one worker, so no other worker can answer;
but anybody who can change the bytes of a plain connection can change elements. TLS prevents that.

*Nonces.* A nonce has 24 bytes: a generation, 12 random bytes that stand for the caller, and a counter that the caller
increments with each call. The server keeps a sliding window for each caller, as IPsec does: the highest counter, and a
bit for each of the 1,023 below it. A counter that the window contains is refused, and so is one below the window. The
memory for a caller is therefore constant. Windows are discarded by generation: when 1,024 callers have a window in the
current generation, the next generation begins, and the windows of the generation before the last are discarded; a nonce
of a discarded generation is refused as too old. A window is made only after the proof was checked, so only callers that
know the token can cause one, and the proof names the instance, so that a call recorded at another instance fails. Each
answer contains the current generation, and the caller uses it from then on. A caller that was idle for two generations
is refused once, before anything was done, and repeats its call. No clock is involved: clocks differ between hosts, and
a laptop's clock stands still while it sleeps.

Hello is not counted. It names no instance and changes nothing, and a recorded Hello that is repeated gets the recorded
answer.

*Resources of unauthenticated callers.* The proof is checked from the metadata alone, before any message is read and on
no thread of its own. A refusal reads no message either. Whatever else the caller sends stays in the flow-control window
of its connection, which `wire/server` keeps small.

*Not covered.* Root, and other processes of the same user, which can read the connection files. Tokens that can be
guessed: a recorded call allows an attacker to try tokens offline, so use `new_token` or a long random string. Requests
and elements on a plain connection can be read by anybody who can capture its traffic; on loopback that is root. Beyond
loopback connections use TLS (`wire/certificates`), with the same proofs in the metadata.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any, Final

from dsnb.errors import (
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from dsnb.storage.failpoints import Failpoint

PROTOCOL_VERSION: Final = "7"
HELLO_PATH: Final = "/dsnb.v1.Dispatcher/Hello"
VERSION_HEADER: Final = "dsnb-version"
PROOF_HEADER: Final = "dsnb-proof-bin"

TAG_BYTES: Final = 16
"""Bytes that `Signer.sign` appends to a message."""

TOKEN_VARIABLE: Final = "DSNB_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN_HINT: Final = (
    "give the token to dsnb.connect(token=...), in the environment variable DSNB_TOKEN or with "  # noqa: S105 - a hint
    "--token-file; the process that started the service shows it as `svc.token`"
)

# ---- tokens

_MAX_TOKEN_BYTES: Final = 4096
_LINK = Failpoint("token name")
"""Most bytes of a token file; a longer file holds something else."""


def new_token() -> str:
    """A random token that cannot be guessed (192 bits)."""
    return secrets.token_urlsafe(24)


def check_token(token: str, where: str) -> str:
    """Return a token without surrounding white space, which files and shells add.

    Args:
        token: The token as given by the user.
        where: Its origin, for the error, as in "the argument `token`".

    Raises:
        InvalidArgumentError: the token is empty (which would admit everybody), not a string, too long or not printable.
    """
    if not isinstance(token, str):
        raise InvalidArgumentError(
            f"{where} must be a string, got {type(token).__name__}", did="nothing was started", hint="leave it out"
        )
    given = str(token).strip()
    if not given:
        raise InvalidArgumentError(
            f"{where} is empty, and an empty token would let everybody in",
            did="nothing was started and nothing was sent",
            hint="leave it out: a service makes a token, and its owner's other processes find it by its address",
        )
    if len(given) > _MAX_TOKEN_BYTES or not given.isprintable():
        raise InvalidArgumentError(
            f"{where} has characters that cannot be printed, or more than {_MAX_TOKEN_BYTES:,}",
            did="nothing was started and nothing was sent",
            hint="`svc.token` shows the token where the service was started",
        )
    return given


def token_from_environment() -> str | None:
    """The token in `DSNB_TOKEN`; None if the variable is not set.

    Raises:
        InvalidArgumentError: the variable is set, but empty or not a token.
    """
    given = os.environ.get(TOKEN_VARIABLE)
    return None if given is None else check_token(given, f"the environment variable {TOKEN_VARIABLE}")


def read_token_file(path: str | os.PathLike[str]) -> str:
    """The token that a file contains.

    Raises:
        NotFoundError: the file cannot be read.
        FailedPreconditionError: the file does not contain a token.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_TOKEN_BYTES + 1)
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise NotFoundError(
            f"the token file {os.fspath(path)!r} cannot be read ({error.strerror})",
            did="nothing was started and nothing was sent",
            hint="check the path",
        ) from error
    token = data.decode(errors="surrogateescape").strip()  # surrogates are not printable, so they fail the check below
    if not token or len(data) > _MAX_TOKEN_BYTES or not token.isprintable():
        raise _invalid_token_file_error(os.fspath(path), data, regular=regular)
    return token


def _invalid_token_file_error(path: str, data: bytes, *, regular: bool) -> FailedPreconditionError:
    if not data.strip():
        what = "is empty" if regular else "is no file, and nothing can be read from it"
    else:
        what = (
            "holds no token" if len(data) > _MAX_TOKEN_BYTES or b"\0" not in data else "is damaged: it holds null bytes"
        )
    lost = regular and len(data) <= _MAX_TOKEN_BYTES
    return FailedPreconditionError(
        f"the token file {path!r} {what}",
        did="nothing was started: without a token everybody could run code here",
        hint="a full disk or a power failure can leave it so; restore it, or remove it, and the service makes a new "
        "token, which workers and trainers on other machines then need too"
        if lost
        else "name a file with one line, the token",
    )


def load_or_create_token(path: str | os.PathLike[str]) -> str:
    """The token that a file contains. If the file does not exist, creates it with a new token and mode 0600.

    The file is created atomically and durably: after a crash of the process or the machine it is complete or absent.

    Raises:
        NotFoundError: the file can neither be read nor created.
        FailedPreconditionError: the file does not contain a token.
    """
    try:
        if not os.path.lexists(path):
            _write_new(os.fspath(path), new_token())
    except OSError as error:
        raise NotFoundError(
            f"the token file {os.fspath(path)!r} cannot be made ({error.strerror})",
            did="nothing was started",
            hint="check the path, and whether the disk is full",
        ) from error
    return read_token_file(path)


def _write_new(path: str, token: str) -> None:
    """Create a file atomically; keeps the one that another process created meanwhile."""
    folder = os.path.dirname(path) or "."
    handle, aside = tempfile.mkstemp(dir=folder, prefix=".token-")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(token)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError), _LINK:
            _link(aside, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(aside)
    # fsync the folder too: otherwise the name may be lost on power failure although the file's data survived.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(aside: str, path: str) -> None:
    """Give a file its final name, unless a file of that name exists."""
    try:
        os.link(aside, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: of two processes that start at once, the last one wins
        os.rename(aside, path)


# ---- proofs

_NONCE = struct.Struct(">I12sQ")
_DIGEST_BYTES: Final = 32
_NO_DIGEST: Final = bytes(_DIGEST_BYTES)
_CLIENT_PROOF = struct.Struct(f"{_NONCE.size}s{_DIGEST_BYTES}s32s")
_SERVER_PROOF = struct.Struct(">32sI")
_MAX_INSTANCE_BYTES: Final = 64

Metadata = tuple[tuple[str, Any], ...]
"""Pairs of a name and a text value; the value is bytes if the name ends in "-bin"."""


@lru_cache(maxsize=16)
def _keyed(token: str) -> hmac.HMAC:
    """An HMAC with this key, to be copied: creating one takes as long as using it twice."""
    return hmac.new(token.encode(), digestmod="sha256")


def _mac(token: str, *parts: bytes) -> bytes:
    mac = _keyed(token).copy()
    mac.update(b"".join([len(part).to_bytes(4) + part for part in parts]))
    return mac.digest()


def pack_nonce(generation: int, caller: bytes, number: int) -> bytes:
    """The nonce of the call with this number from a caller, whom 12 bytes identify."""
    return _NONCE.pack(generation, caller, number)


def request_digest(request: bytes) -> bytes:
    """The digest of a unary request, which is part of the call's proof."""
    return hashlib.sha256(request).digest()


class Signer:
    """Signs or checks the messages of one direction of one call, in order. For one thread at a time.

    Args:
        key: The key for this call and direction, see `Proof.signer`.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._numbers = count()

    def sign(self, message: bytes) -> bytes:
        """Return the message with its tag appended."""
        return message + self._tag(message)

    def check(self, message: bytes) -> bytes:
        """Return the message without its tag.

        Raises:
            DataLossError: this is not the next message that the sender signed.
        """
        body, tag = message[:-TAG_BYTES], message[-TAG_BYTES:]
        if not hmac.compare_digest(self._tag(body), tag):
            raise altered_message_error()
        return body

    def _tag(self, message: bytes) -> bytes:
        tag = hashlib.blake2b(next(self._numbers).to_bytes(8), key=self._key, digest_size=TAG_BYTES)
        tag.update(message)
        return tag.digest()


def altered_message_error() -> DataLossError:
    """The error for a message that differs from what was sent."""
    return DataLossError(
        "a message was damaged or changed on its way",
        did="it was dropped, and its call was abandoned",
        hint="what does it pass through on its way from one process to the other?",
    )


class Proof:
    """The proofs of one call: both ends compute them from the same values and compare.

    Args:
        token: The key of the proofs.
        path: The path of the method.
        instance: The instance id of the server; empty in a Hello until its answer arrives.
        nonce: The nonce of this call.
        digest: The digest of a unary request.
    """

    def __init__(self, token: str, path: str, instance: str, nonce: bytes, digest: bytes = _NO_DIGEST) -> None:
        self.path = path
        self.instance = instance
        self.nonce = nonce
        self.digest = digest
        self._token = token

    @property
    def client_mac(self) -> bytes:
        """Proves that the caller knows the token."""
        instance = self.instance.encode()
        return _mac(self._token, b"client", self.path.encode(), instance, self.nonce, self.digest)

    @property
    def server_mac(self) -> bytes:
        """Proves that the server knows the token."""
        return _mac(self._token, b"server", self.instance.encode(), self.nonce)

    def signer(self, *, to_server: bool) -> Signer:
        """A signer for the messages of one direction of this call."""
        direction = b"messages to the server" if to_server else b"messages to the client"
        return Signer(_mac(self._token, direction, self.path.encode(), self.instance.encode(), self.nonce))


# ---- the caller's end


class Caller:
    """A caller of one server: makes nonces and checks the server's proofs. Thread-safe."""

    def __init__(self) -> None:
        self._id = os.urandom(12)
        self._counts = count(1)
        self._generation = 1

    def proof(self, token: str, path: str, instance: str, digest: bytes = _NO_DIGEST) -> Proof:
        """The proof of a new call, with a fresh nonce."""
        return Proof(token, path, instance, pack_nonce(self._generation, self._id, next(self._counts)), digest)

    def accepts(self, proof: Proof, answer: Iterable[tuple[str, Any]] | None) -> bool:
        """Whether the server's initial metadata prove that it is the server that was called.

        The answer to a Hello contains the instance id, which is stored in `proof`.
        """
        shown = dict(answer or ()).get(PROOF_HEADER)
        if (
            not isinstance(shown, bytes)
            or not _SERVER_PROOF.size <= len(shown) <= _SERVER_PROOF.size + _MAX_INSTANCE_BYTES
        ):
            return False
        server, generation = _SERVER_PROOF.unpack_from(shown)
        hello = not proof.instance
        if hello:
            proof.instance = shown[_SERVER_PROOF.size :].decode(errors="replace")
        if not proof.instance or not hmac.compare_digest(proof.server_mac, server):
            proof.instance = "" if hello else proof.instance
            return False
        self._generation = generation
        return True


def call_metadata(proof: Proof | None) -> Metadata:
    """The metadata of a call; None for `proof` if the caller has no token."""
    if proof is None:
        return ((VERSION_HEADER, PROTOCOL_VERSION),)
    shown = _CLIENT_PROOF.pack(proof.nonce, proof.digest, proof.client_mac) + proof.instance.encode()
    return ((VERSION_HEADER, PROTOCOL_VERSION), (PROOF_HEADER, shown))


def encode_proof(proof: Proof) -> bytes:
    """Encode a caller's proof, with the protocol version, for connections other than gRPC; see `decode_proof`."""
    shown = [part for _, part in call_metadata(proof)]
    return b"\n".join(part if isinstance(part, bytes) else part.encode() for part in shown)


def decode_proof(text: bytes) -> Mapping[str, Any]:
    """Decode a caller's proof into call metadata."""
    version, _, proof = text.partition(b"\n")
    return {VERSION_HEADER: version.decode(errors="replace"), PROOF_HEADER: proof}


# ---- the server's end

FRESH: Final = "fresh"
SEEN: Final = "seen"
OLD: Final = "old"

MAX_CALLERS: Final = 1024
WINDOW_BITS: Final = 1024


class Refusal(Exception):
    """Raised by `Guard.admit` for a call that is refused.

    Attributes:
        error: The error to send to the caller.
        initial_metadata: The initial metadata to send; they contain the server's proof if the caller's was valid.
    """

    def __init__(self, error: DsnbError, initial_metadata: Metadata = ()) -> None:
        super().__init__(error.what)
        self.error = error
        self.initial_metadata = initial_metadata


class Guard:
    """Decides for one server which calls to admit, by their metadata. Thread-safe.

    Args:
        token: The server's token, or a function that returns it: a worker uses the token with which its dispatcher last
            authenticated itself, and an empty one until then.
        instance: The instance id that callers know already (a worker's uid). If empty, a random id is made, and callers
            get it by a Hello.
        max_callers: See `Nonces`.
    """

    def __init__(self, token: str | Callable[[], str], instance: str = "", *, max_callers: int = MAX_CALLERS) -> None:
        self.instance = instance or secrets.token_hex(8)
        self.hello_path = "" if instance else HELLO_PATH
        self._token = token if callable(token) else lambda: token
        self._nonces = Nonces(max_callers)
        self._lock = threading.Lock()

    def admit(self, path: str, metadata: Mapping[str, Any]) -> tuple[Proof, Metadata]:
        """Return the proof of an admitted call and the initial metadata of the answer.

        Raises:
            Refusal: the call is not admitted.
        """
        version, header = metadata.get(VERSION_HEADER), metadata.get(PROOF_HEADER)
        if version != PROTOCOL_VERSION and (version, header) != (None, None):
            raise Refusal(_version_error(str(version)))
        if not isinstance(header, bytes) or len(header) < _CLIENT_PROOF.size:
            raise Refusal(_denied_error("the service wants a token and none was given"))
        nonce, digest, client = _CLIENT_PROOF.unpack_from(header)
        named = header[_CLIENT_PROOF.size :].decode(errors="replace")
        if named != ("" if path == self.hello_path else self.instance):
            raise Refusal(UnavailableError("the call is for another instance of this service"))
        token = self._token()
        if not token:
            raise Refusal(UnavailableError("this worker has not joined its service yet"))
        if not hmac.compare_digest(Proof(token, path, named, nonce, digest).client_mac, client):
            raise Refusal(_denied_error("the token is wrong"))
        proof = Proof(token, path, self.instance, nonce, digest)
        # Recorded only now, so that a caller without the token can neither use up nonces nor cause windows.
        with self._lock:
            freshness = FRESH if path == self.hello_path else self._nonces.record(nonce)
            generation = self._nonces.generation
        answer = ((PROOF_HEADER, _SERVER_PROOF.pack(proof.server_mac, generation) + self.instance.encode()),)
        if freshness == OLD:
            raise Refusal(UnavailableError("the call's nonce is too old; a new one is taken"), answer)
        if freshness == SEEN:
            raise Refusal(_denied_error("this call was made before, with the same nonce"), answer)
        return proof, answer


def _denied_error(what: str) -> PermissionDeniedError:
    return PermissionDeniedError(what, did="nothing was changed", hint=_TOKEN_HINT)


def _version_error(version: str) -> FailedPreconditionError:
    quoted = (
        version if len(version) < 6 and version.isalnum() else "(unknown)"
    )  # an older version's metadata may contain its token
    return FailedPreconditionError(
        f"the caller speaks version {quoted} of the protocol, this server {PROTOCOL_VERSION}",
        did="nothing was changed",
        hint="install the same version of dsnb on both sides",
    )


class _ReplayWindow:
    """The counters of one caller that were seen: the highest, and a bit for each of the `WINDOW_BITS` up to it."""

    __slots__ = ("highest", "seen")

    def __init__(self) -> None:
        self.highest = 0
        self.seen = 0

    def record(self, number: int) -> str:
        above = number - self.highest
        if above > 0:  # the shift is limited: the caller chooses `number`, and a huge shift would use huge memory
            self.seen = (self.seen << min(above, WINDOW_BITS) | 1) & ((1 << WINDOW_BITS) - 1)
            self.highest = number
            return FRESH
        if -above >= WINDOW_BITS:
            return OLD
        if self.seen >> -above & 1:
            return SEEN
        self.seen |= 1 << -above
        return FRESH


class Nonces:
    """The nonces that a server has seen, in bounded memory; see the module's theory of operation.

    Args:
        max_callers: How many callers have a window in one generation at most.

    Example:
        >>> nonces, nonce = Nonces(), pack_nonce(1, b"twelve bytes", 1)
        >>> nonces.record(nonce), nonces.record(nonce)
        ('fresh', 'seen')
    """

    def __init__(self, max_callers: int = MAX_CALLERS) -> None:
        self.generation = 1
        self._max_callers = max_callers
        self._current: dict[bytes, _ReplayWindow] = {}
        self._previous: dict[bytes, _ReplayWindow] = {}

    def record(self, nonce: bytes) -> str:
        """Record a nonce whose proof was valid; returns `FRESH`, `SEEN`, or `OLD` if it is too old to decide."""
        generation, caller, number = _NONCE.unpack(nonce)
        if generation == self.generation:
            windows = self._current
        elif generation == self.generation - 1:
            windows = self._previous
        else:
            return OLD
        window = windows.get(caller)
        if window is None:
            if len(windows) >= self._max_callers:
                if windows is self._current:  # the caller repeats its call in the new generation
                    self.generation += 1
                    self._previous, self._current = self._current, {}
                return OLD
            window = windows[caller] = _ReplayWindow()
        return window.record(number)

    def debug_state(self) -> dict[str, list[int]]:
        """The bits of the windows that are kept, one number for each caller, of both generations."""
        return {
            "current": [window.seen.bit_length() for window in self._current.values()],
            "previous": [window.seen.bit_length() for window in self._previous.values()],
        }

"""How dsnb's errors travel: a gRPC status for each class, and the error's texts as trailing metadata."""

from __future__ import annotations

import errno
import json
import os
import traceback
from typing import Any

import grpc

from dsnb import errors
from dsnb.code.tracebacks import RemoteTraceback
from dsnb.errors import DsnbError
from dsnb.system_limits import limit_error, open_files_text
from dsnb.wire.certificates import speaks_tls

_CODES: dict[type[DsnbError], grpc.StatusCode] = {
    errors.InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.FailedPreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnimplementedError: grpc.StatusCode.UNIMPLEMENTED,
    errors.PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.CancelledError: grpc.StatusCode.CANCELLED,
    errors.DataLossError: grpc.StatusCode.DATA_LOSS,
    errors.UserCodeError: grpc.StatusCode.ABORTED,
}
_CLASSES = {code: cls for cls, code in _CODES.items()}

ERROR_METADATA_KEY = "dsnb-error-bin"
"""The trailing metadata with an error's three parts, and the traceback of an unexpected exception."""

_BUG_HINT = "this is a bug of dsnb, not of your code; please report it with the traceback above"
_BROKEN_CONNECTION_TEXTS = ("Stream removed", "RST_STREAM")
"""Texts in gRPC's details, under several codes, for a connection that broke during a call."""


def abort(context: grpc.ServicerContext, error: DsnbError) -> None:
    """End a call on the server's side with a `DsnbError`."""
    _abort_with(context, _code_of(error), error, "")


def abort_unexpected(context: grpc.ServicerContext, error: Exception, call: str) -> None:
    """End a call whose handler raised an unexpected exception; the caller gets the traceback."""
    if (limit := limit_error(error)) is not None:
        abort(context, limit)
        return
    text = "".join(traceback.format_exception(error))
    reported = DsnbError(
        f"{call} failed with {type(error).__name__}: {error}", did="the call was abandoned", hint=_BUG_HINT
    )
    _abort_with(context, grpc.StatusCode.INTERNAL, reported, text)


def encode_error(error: Exception, call: str) -> bytes:
    """Encode an error as JSON, for connections other than gRPC; see `decode_error`."""
    error = limit_error(error) or error
    if isinstance(error, DsnbError):
        code, reported, trace = _code_of(error), error, ""
    else:
        code, trace = grpc.StatusCode.INTERNAL, "".join(traceback.format_exception(error))
        reported = DsnbError(
            f"{call} failed with {type(error).__name__}: {error}", did="the call was abandoned", hint=_BUG_HINT
        )
    return json.dumps([code.name, reported.what, reported.did, reported.hint, trace], ensure_ascii=True).encode()


def decode_error(payload: bytes) -> DsnbError:
    """Decode an error that `encode_error` encoded."""
    name, *rest = json.loads(payload)
    return _error_from_payload(grpc.StatusCode[name], json.dumps(rest))


def _code_of(error: DsnbError) -> grpc.StatusCode:
    return next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), grpc.StatusCode.UNKNOWN)


def _abort_with(context: grpc.ServicerContext, code: grpc.StatusCode, error: DsnbError, trace: str) -> None:
    payload = [_truncate(error.what, 2000), _truncate(error.did, 500), _truncate(error.hint, 500), _tail(trace, 3000)]
    context.set_trailing_metadata(((ERROR_METADATA_KEY, json.dumps(payload, ensure_ascii=False).encode()),))
    context.abort(code, _truncate(error.what, 200))


def _tail(text: str, limit: int) -> str:
    """Limit a text to its last bytes, because a traceback ends with the error itself."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    return f"({len(data) - limit:,} bytes before) ... {data[-limit:].decode(errors='ignore')}"


def _truncate(text: str, limit: int) -> str:
    """Limit a text to its first bytes. gRPC drops calls with more than 8 KB of metadata, and the error with them."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    return data[:limit].decode(errors="ignore") + f" ... ({len(data) - limit:,} bytes more)"


def error_from_call(call: Any, address: str) -> DsnbError:
    """The `DsnbError` for a failed call, on the caller's side.

    `UnavailableError` and `CancelledError` are transient, so that a retry may succeed; all others are permanent.

    Args:
        call: The `grpc.RpcError`, which is also the call.
        address: The address of the server, for the error text.
    """
    code = call.code()
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY:
            return _error_from_payload(code, value)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.FailedPreconditionError(
            f"the server at {address} does not know this call",
            hint="it is another program, a worker where a dispatcher is meant, or another version of dsnb; "
            "check the address, or upgrade both sides",
        )
    details = call.details() or code.name
    if os.strerror(errno.EMFILE) in details:
        details = f"{details}: {open_files_text()}"
    what = f"the call to {address} failed: {details}"
    if code in _CLASSES:
        return _CLASSES[code](what)
    if any(word in details for word in _BROKEN_CONNECTION_TEXTS):
        return errors.UnavailableError(what)
    return DsnbError(what, did="the call was abandoned", hint="this looks like a bug of dsnb; please report it")


_OTHER_CERTIFICATE_TEXTS = ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed", "UNKNOWN_CA")
_NOT_TLS_TEXTS = ("WRONG_VERSION_NUMBER",)
_CLOSED_TEXTS = ("Socket closed", "Connection reset", "recvmsg:")


def tls_refusal(details: str, address: str, *, encrypted: bool) -> errors.PermissionDeniedError | None:
    """The error for a connection that failed because its two ends do not agree on TLS or on the certificate.

    gRPC's own texts do not say so, and for a plain connection to a server with TLS they say only that it was closed:
    then a handshake without a certificate finds out what the server expects.

    Args:
        details: gRPC's text for the failed call.
        address: The server's address.
        encrypted: Whether this end used TLS.

    Returns:
        None if TLS is not the cause.
    """
    nothing_sent = "nothing was sent to it"
    if any(text in details for text in _OTHER_CERTIFICATE_TEXTS):
        return errors.PermissionDeniedError(
            f"the service at {address} has another certificate than the one known here",
            did=nothing_sent,
            hint=_NEW_JOIN_FILE_HINT,
        )
    if any(text in details for text in _NOT_TLS_TEXTS):
        return errors.PermissionDeniedError(
            f"the service at {address} does not use TLS, and the join file here has a certificate for it",
            did=nothing_sent,
            hint=_NEW_JOIN_FILE_HINT,
        )
    if encrypted or not any(text in details for text in _CLOSED_TEXTS) or not speaks_tls(address):
        return None
    return errors.PermissionDeniedError(
        f"the service at {address} uses TLS, and no certificate for it is known here",
        did=nothing_sent,
        hint=_NEW_JOIN_FILE_HINT,
    )


_NEW_JOIN_FILE_HINT = (
    "copy a new join file from the machine of the service: svc.join_command() writes it there, or "
    "`dsnb certificate --join-file FILE`; then dsnb.connect(FILE), `dsnb worker --join FILE` or DSNB_JOIN_FILE=FILE"
)


def as_read_error(error: DsnbError) -> DsnbError:
    """The error of a read: a cancelled call becomes `UnavailableError`, because a stopping worker cancels its reads."""
    return errors.UnavailableError(error.what) if isinstance(error, errors.CancelledError) else error


def _error_from_payload(code: grpc.StatusCode, payload: str | bytes) -> DsnbError:
    what, did, hint, trace = json.loads(payload)
    error = _CLASSES.get(code, DsnbError)(what, did=did, hint=hint)
    if trace:
        error.__cause__ = RemoteTraceback(trace)
    return error

"""dsnb's errors on the wire: which gRPC status stands for which class, and the page of text that travels with it."""

from __future__ import annotations

import errno
import json
import os
import traceback
from typing import Any

import grpc

from dsnb import errors
from dsnb.elements.tracebacks import RemoteTraceback
from dsnb.errors import DsnbError
from dsnb.system_limits import limit_error, open_files_text

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
"""The trailing metadata that carries an error's three parts, and a bug's traceback."""

_BUG_HINT = "this is a bug of dsnb, not of your code; please report it with the traceback above"
_BROKEN_CONNECTION_TEXTS = ("Stream removed", "RST_STREAM")
"""What gRPC says, under several codes, of a connection that broke in a call."""


def abort(context: grpc.ServicerContext, error: DsnbError) -> None:
    """End a call on the server's side with one of our errors."""
    _abort_with(context, _code_of(error), error, "")


def abort_unexpected(context: grpc.ServicerContext, error: Exception, call: str) -> None:
    """End a call whose handler failed in a way that nobody thought of; the caller gets the traceback."""
    if (limit := limit_error(error)) is not None:
        abort(context, limit)
        return
    text = "".join(traceback.format_exception(error))
    reported = DsnbError(
        f"{call} failed with {type(error).__name__}: {error}", did="the call was given up", hint=_BUG_HINT
    )
    _abort_with(context, grpc.StatusCode.INTERNAL, reported, text)


def encode_error(error: Exception, call: str) -> bytes:
    """An error as text, for connections that are not gRPC's; `decode_error` reads it."""
    error = limit_error(error) or error
    if isinstance(error, DsnbError):
        code, reported, trace = _code_of(error), error, ""
    else:
        code, trace = grpc.StatusCode.INTERNAL, "".join(traceback.format_exception(error))
        reported = DsnbError(
            f"{call} failed with {type(error).__name__}: {error}", did="the call was given up", hint=_BUG_HINT
        )
    return json.dumps([code.name, reported.what, reported.did, reported.hint, trace], ensure_ascii=True).encode()


def decode_error(payload: bytes) -> DsnbError:
    """The error that `encode_error` put into text."""
    name, *rest = json.loads(payload)
    return _error_from_payload(grpc.StatusCode[name], json.dumps(rest))


def _code_of(error: DsnbError) -> grpc.StatusCode:
    return next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), grpc.StatusCode.UNKNOWN)


def _abort_with(context: grpc.ServicerContext, code: grpc.StatusCode, error: DsnbError, trace: str) -> None:
    payload = [_truncate(error.what, 2000), _truncate(error.did, 500), _truncate(error.hint, 500), _tail(trace, 3000)]
    context.set_trailing_metadata(((ERROR_METADATA_KEY, json.dumps(payload, ensure_ascii=False).encode()),))
    context.abort(code, _truncate(error.what, 200))


def _tail(text: str, limit: int) -> str:
    """The end of a text, where a traceback says what happened."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    return f"({len(data) - limit:,} bytes before) ... {data[-limit:].decode(errors='ignore')}"


def _truncate(text: str, limit: int) -> str:
    """The text, or its beginning. gRPC drops a call whose metadata are over 8 KB, and the error with it."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    return data[:limit].decode(errors="ignore") + f" ... ({len(data) - limit:,} bytes more)"


def error_from_call(call: Any, address: str) -> DsnbError:
    """The error that a failed call stands for, as seen by the caller.

    An `UnavailableError` or a `CancelledError` may pass when the call is made again; anything else is there to stay.

    Args:
        call: The `grpc.RpcError`, which is the call as well.
        address: Whom was called, for the text.
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
    return DsnbError(what, did="it was given up", hint="this looks like a bug of dsnb; please report it")


def as_read_error(error: DsnbError) -> DsnbError:
    """What a read ended with: `UnavailableError` where trying again may help, as when a worker stops or goes away."""
    return errors.UnavailableError(error.what) if isinstance(error, errors.CancelledError) else error


def _error_from_payload(code: grpc.StatusCode, payload: str | bytes) -> DsnbError:
    what, did, hint, trace = json.loads(payload)
    error = _CLASSES.get(code, DsnbError)(what, did=did, hint=hint)
    if trace:
        error.__cause__ = RemoteTraceback(trace)
    return error

"""dsnb's errors on the wire: which gRPC status stands for which class, and the page of text that travels with it."""

from __future__ import annotations

import errno
import json
import os
import traceback
from typing import Any

import grpc

from dsnb import errors
from dsnb.elements.legible import RemoteTraceback
from dsnb.errors import DsnbError
from dsnb.limits import explained, files_open

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

PAGE = "dsnb-error-bin"
"""The trailing metadata that carries an error's three parts, and a bug's traceback."""

_BUG = "this is a bug of dsnb, not of your code; please report it with the traceback above"
_BROKEN = ("Stream removed", "RST_STREAM")
"""What gRPC says, under several codes, of a connection that broke in a call."""


def abort(context: grpc.ServicerContext, error: DsnbError) -> None:
    """End a call on the server's side with one of our errors."""
    _end(context, _code_of(error), error, "")


def abort_unexpected(context: grpc.ServicerContext, error: Exception, call: str) -> None:
    """End a call whose handler failed in a way that nobody thought of; the caller gets the traceback."""
    if (limit := explained(error)) is not None:
        abort(context, limit)
        return
    text = "".join(traceback.format_exception(error))
    page = DsnbError(f"{call} failed with {type(error).__name__}: {error}", did="the call was given up", hint=_BUG)
    _end(context, grpc.StatusCode.INTERNAL, page, text)


def page_of(error: Exception, call: str) -> bytes:
    """An error as text, for connections that are not gRPC's; `error_of` reads it."""
    error = explained(error) or error
    if isinstance(error, DsnbError):
        code, page, trace = _code_of(error), error, ""
    else:
        code, trace = grpc.StatusCode.INTERNAL, "".join(traceback.format_exception(error))
        page = DsnbError(f"{call} failed with {type(error).__name__}: {error}", did="the call was given up", hint=_BUG)
    return json.dumps([code.name, page.what, page.did, page.hint, trace], ensure_ascii=True).encode()


def error_of(page: bytes) -> DsnbError:
    """The error that `page_of` put into text."""
    name, *rest = json.loads(page)
    return _from_page(grpc.StatusCode[name], json.dumps(rest))


def _code_of(error: DsnbError) -> grpc.StatusCode:
    return next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), grpc.StatusCode.UNKNOWN)


def _end(context: grpc.ServicerContext, code: grpc.StatusCode, error: DsnbError, trace: str) -> None:
    page = [_cut(error.what, 2000), _cut(error.did, 500), _cut(error.hint, 500), _end_of(trace, 3000)]
    context.set_trailing_metadata(((PAGE, json.dumps(page, ensure_ascii=False).encode()),))
    context.abort(code, _cut(error.what, 200))


def _end_of(text: str, most: int) -> str:
    """The end of a text, where a traceback says what happened."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return f"({len(data) - most:,} bytes before) ... {data[-most:].decode(errors='ignore')}"


def _cut(text: str, most: int) -> str:
    """The text, or its beginning. gRPC drops a call whose metadata are over 8 KB, and the error with it."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return data[:most].decode(errors="ignore") + f" ... ({len(data) - most:,} bytes more)"


def error_from(call: Any, address: str) -> DsnbError:
    """The error that a failed call stands for, as seen by the caller.

    An `UnavailableError` or a `CancelledError` may pass when the call is made again; anything else is there to stay.

    Args:
        call: The `grpc.RpcError`, which is the call as well.
        address: Whom was called, for the text.
    """
    code = call.code()
    for key, value in call.trailing_metadata() or ():
        if key == PAGE:
            return _from_page(code, value)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.FailedPreconditionError(
            f"the server at {address} does not know this call",
            hint="it is another program, a worker where a dispatcher is meant, or another version of dsnb; "
            "check the address, or upgrade both sides",
        )
    details = call.details() or code.name
    if os.strerror(errno.EMFILE) in details:
        details = f"{details}: {files_open()}"
    what = f"the call to {address} failed: {details}"
    if code in _CLASSES:
        return _CLASSES[code](what)
    if any(word in details for word in _BROKEN):
        return errors.UnavailableError(what)
    return DsnbError(what, did="it was given up", hint="this looks like a bug of dsnb; please report it")


def end_of_read(error: DsnbError) -> DsnbError:
    """What a read ended with: `UnavailableError` where trying again may help, as when a worker stops or goes away."""
    return errors.UnavailableError(error.what) if isinstance(error, errors.CancelledError) else error


def _from_page(code: grpc.StatusCode, page: str | bytes) -> DsnbError:
    what, did, hint, trace = json.loads(page)
    error = _CLASSES.get(code, DsnbError)(what, did=did, hint=hint)
    if trace:
        error.__cause__ = RemoteTraceback(trace)
    return error

"""dsnb's errors on the wire: which gRPC status stands for which class, and the page of text that travels with it."""

from __future__ import annotations

import json
from typing import Any

import grpc

from dsnb import errors
from dsnb.errors import DsnbError

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
}
_CLASSES = {code: cls for cls, code in _CODES.items()}

PAGE = "dsnb-error-bin"
"""The trailing metadata that carries an error's three parts."""


def abort(context: grpc.ServicerContext, error: DsnbError) -> None:
    """End a call on the server's side with one of our errors."""
    page = json.dumps([_cut(error.what, 2000), _cut(error.did, 500), _cut(error.hint, 500)], ensure_ascii=False)
    context.set_trailing_metadata(((PAGE, page.encode()),))
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), grpc.StatusCode.UNKNOWN)
    context.abort(code, _cut(error.what, 200))


def _cut(text: str, most: int) -> str:
    """The text, or its beginning. gRPC drops a call whose metadata are over 8 KB, and the error with it."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return data[:most].decode(errors="ignore") + f" ... ({len(data) - most:,} bytes more)"


def error_from(call: Any, address: str) -> DsnbError:
    """The error that a failed call stands for, as seen by the caller.

    Args:
        call: The `grpc.RpcError`, which is the call as well.
        address: Whom was called, for the text.
    """
    code = call.code()
    for key, value in call.trailing_metadata() or ():
        if key == PAGE:
            what, did, hint = json.loads(value)
            return _CLASSES.get(code, DsnbError)(what, did=did, hint=hint)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.FailedPreconditionError(
            f"the server at {address} does not know this call",
            hint="it is another program or another version of dsnb; check the address, or upgrade both sides",
        )
    cls = _CLASSES.get(code, errors.UnavailableError)
    return cls(f"the call to {address} failed: {call.details() or code.name}")

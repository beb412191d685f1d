"""Tokens, and the version check that goes with them.

Whoever may register a dataset may run code on the workers, so every call carries the service's token. It travels in the
metadata of a call, never in an argument list, a pickle or a fingerprint.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PermissionDeniedError
from dsnb.wire.status import abort

PROTOCOL_VERSION = "1"
_TOKEN = "dsnb-token"  # noqa: S105 - the name of a header
_VERSION = "dsnb-version"
_HINT = (
    "give the token to dsnb.connect(token=...), in the environment variable DSNB_TOKEN or with --token-file; "
    "the process that started the service shows it as `svc.token`"
)


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(24)


def read_token_file(path: str | os.PathLike[str]) -> str:
    """The token that a file holds."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise NotFoundError(
            f"the token file {os.fspath(path)} cannot be read ({error.strerror})", hint="check the path"
        ) from error


def kept_token(path: str | os.PathLike[str]) -> str:
    """The token that a file holds; a new one is written where there is none, for its owner's eyes alone.

    Raises:
        NotFoundError: the file can neither be read nor made.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token_file(path)
    except OSError as error:
        raise NotFoundError(
            f"the token file {os.fspath(path)} cannot be made ({error.strerror})",
            did="nothing was started",
            hint="check the path",
        ) from error
    token = new_token()
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(token)
    return token


def credentials(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata that a call must carry.

    Raises:
        InvalidArgumentError: the token is none that can be sent.
    """
    if not token.isascii() or not (token + "x").isprintable():
        # gRPC would call the server unreachable; the token itself is never shown.
        raise InvalidArgumentError("the token has characters that cannot be sent", hint=_HINT)
    return ((_TOKEN, token), (_VERSION, PROTOCOL_VERSION))


class Guard(grpc.ServerInterceptor):  # type: ignore[type-arg]  # the class takes no arguments when it runs
    """Refuses calls without the token, or of another version of the protocol."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        handler = continuation(call)
        if handler is None:
            return None
        error = refusal(dict(call.invocation_metadata), self._token)
        return handler if error is None else _refusal(handler, error)


def refusal(shown: Mapping[str, Any], token: str) -> PermissionDeniedError | FailedPreconditionError | None:
    """Why a caller who shows these credentials is not let in; None if he is."""
    if not hmac.compare_digest(str(shown.get(_TOKEN, "")).encode(), token.encode()):
        what = "the token is wrong" if shown.get(_TOKEN) else "the service wants a token and none was given"
        return PermissionDeniedError(what, did="nothing was changed", hint=_HINT)
    if shown.get(_VERSION) != PROTOCOL_VERSION:
        return FailedPreconditionError(
            f"the caller speaks version {shown.get(_VERSION)!s} of the protocol, this server {PROTOCOL_VERSION}",
            hint="install the same version of dsnb on both sides",
        )
    return None


def _refusal(handler: Any, error: PermissionDeniedError | FailedPreconditionError) -> Any:
    def refuse(_request: Any, context: grpc.ServicerContext) -> Any:
        abort(context, error)

    def refuse_stream(_request: Any, context: grpc.ServicerContext) -> Any:
        abort(context, error)
        yield  # pragma: no cover - makes this a generator, as a streaming handler must be

    # Built anew because a call that streams must be refused by a handler that streams.
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(refuse_stream if handler.response_streaming else refuse)

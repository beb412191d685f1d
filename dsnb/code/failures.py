"""Failures: an error of user code replaces an element; it is serialised on the worker and raised again in the reader.

The reader gets the original class, with dsnb's context added as notes and the remote traceback as its cause. It gets a
`UserCodeError` if the original cannot be rebuilt, or would be mistaken for control flow.
"""

from __future__ import annotations

from dsnb.code.pickling import dump_error, load_error
from dsnb.code.tracebacks import RemoteTraceback, format_note, traceback_text
from dsnb.elements.failure import Failure
from dsnb.errors import DsnbError, UserCodeError

_MAX_TEXT = 64 * 1024
_MAX_PICKLED_BYTES = 1 << 20
_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit)


def failure_of(error: BaseException, *notes: str) -> Failure:
    """The failure for an error, with additional notes."""
    notes = (*getattr(error, "__notes__", ()), *notes)
    return Failure(
        kind=_kind(error),
        message=_utf8(_message(error)),
        traceback=_utf8(traceback_text(error)),
        pickled=_pickled(error),
        notes=tuple(map(_utf8, notes)),
    )


def exception_of(failure: Failure) -> Exception:
    """The error to raise in the reader's process; a new one each time."""
    error = _original(failure)
    # Assigned, not added: most errors restore their notes when unpickled, those with their own `__reduce__` do not.
    error.__notes__ = list(map(format_note, failure.notes))
    if failure.traceback:
        error.__cause__ = RemoteTraceback(failure.traceback)
    return error


def _original(failure: Failure) -> Exception:
    if failure.pickled:
        try:
            error = load_error(failure.pickled)
        except Exception:  # noqa: BLE001 - the user's own class may fail in any way when it is rebuilt
            error = None
        if isinstance(error, Exception) and not isinstance(error, _CONTROL_FLOW):
            return error
    return UserCodeError(
        f"{failure.kind}: {failure.message}",
        did="this error takes the element's place; reading can continue after it",
        hint="the remote traceback above shows the line in your code",
    )


def _utf8(text: str) -> str:
    # Python represents undecodable bytes of file names as lone surrogates, which UTF-8 cannot encode.
    whole = text.encode("utf-8", "backslashreplace").decode()
    if len(whole) <= _MAX_TEXT:
        return whole
    half = _MAX_TEXT // 2
    return f"{whole[:half]} ... ({len(whole) - _MAX_TEXT:,} characters) ... {whole[-half:]}"


def _pickled(error: BaseException) -> bytes:
    if isinstance(error, _CONTROL_FLOW):
        return b""
    try:
        data = dump_error(error)
        load_error(data)  # an error that cannot be rebuilt here cannot be rebuilt anywhere
    except Exception:  # noqa: BLE001 - an error may hold any object, and pickling may run user code
        return b""
    return data if len(data) <= _MAX_PICKLED_BYTES else b""


def _message(error: BaseException) -> str:
    try:
        return error.what if isinstance(error, DsnbError) else str(error)
    except Exception as second:  # noqa: BLE001 - the user's own class may fail in any way when it is printed
        return f"(its text cannot be had: {type(second).__name__})"


def _kind(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"

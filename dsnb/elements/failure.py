"""A failure stands in an element's place: an error of the user's code, made ready to travel and raised again elsewhere.

It is raised as its original class, with what dsnb knows added as notes and the remote traceback as its cause; as
`UserCodeError` where the original cannot be rebuilt, or would be mistaken for control flow.
"""

from __future__ import annotations

from dsnb.dataclass import dataclass
from dsnb.elements.pickling import dump_error, load_error
from dsnb.elements.tracebacks import RemoteTraceback, format_note, traceback_text
from dsnb.errors import DsnbError, UserCodeError

_MAX_TEXT = 64 * 1024
_MAX_PICKLED_BYTES = 1 << 20
_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that travels.

    Attributes:
        kind: The qualified name of the original class.
        message: Its text.
        traceback: The remote traceback, as Python prints it, without dsnb's own frames.
        pickled: The error itself; empty where it cannot be pickled, or holds more than an error should.
        notes: The error's own, and what dsnb adds: where it happened.
    """

    kind: str
    message: str
    traceback: str
    pickled: bytes = b""
    notes: tuple[str, ...] = ()

    def to_exception(self) -> Exception:
        """The error to raise in the reader's process; a new one each time."""
        error = self._original()
        # Set, not added: some errors bring their notes along when they are rebuilt, those with a reduction of their own
        # do not.
        error.__notes__ = list(map(format_note, self.notes))
        if self.traceback:
            error.__cause__ = RemoteTraceback(self.traceback)
        return error

    def _original(self) -> Exception:
        if self.pickled:
            try:
                error = load_error(self.pickled)
            except Exception:  # noqa: BLE001 - the user's own class may fail in any way when it is rebuilt
                error = None
            if isinstance(error, Exception) and not isinstance(error, _CONTROL_FLOW):
                return error
        return UserCodeError(
            f"{self.kind}: {self.message}",
            did="the element's place is taken by this error; reading can go on behind it",
            hint="the remote traceback above shows the line in your code",
        )


def failure_of(error: BaseException, *notes: str) -> Failure:
    """Make an error ready to travel."""
    notes = (*getattr(error, "__notes__", ()), *notes)
    return Failure(
        kind=_kind(error),
        message=_utf8(_message(error)),
        traceback=_utf8(traceback_text(error)),
        pickled=_pickled(error),
        notes=tuple(map(_utf8, notes)),
    )


def _utf8(text: str) -> str:
    # Python keeps the odd bytes of file names as lone surrogates, which no other program takes for text.
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
    except Exception:  # noqa: BLE001 - errors carry anything, also what cannot be pickled
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

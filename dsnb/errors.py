"""All errors and warnings of dsnb.

DsnbError
├── InvalidArgumentError      (ValueError)           a value that is never valid
├── NotFoundError             (LookupError)          no service, job, dataset or file by that name
├── AlreadyExistsError                               the name or the port is in use
├── FailedPreconditionError   (RuntimeError)         a valid call in the wrong state
├── UnimplementedError        (NotImplementedError)  dsnb cannot do this (yet)
├── PermissionDeniedError     (PermissionError)      the token is missing or wrong
├── ResourceExhaustedError    (RuntimeError)         a stated limit is reached
├── UnavailableError          (ConnectionError)      a server cannot be reached
├── DeadlineExceededError     (TimeoutError)         a wait reached its time-out
├── CancelledError                                   the reader, task or server was stopped
├── DataLossError                                    data that cannot be recovered
└── UserCodeError                                    user code failed, and its own error cannot be rebuilt

DsnbWarning (UserWarning)
├── CacheWarning                                     a cache could not keep something or had to redo work
└── DataLossWarning                                  elements or splits that will not arrive

Every error has three parts: what happened, what dsnb did about it, what to try. They are separate fields, and the text
is built from them, so that a notebook, a log and the wire show the same words.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType

__all__ = (
    "AlreadyExistsError",
    "CacheWarning",
    "CancelledError",
    "DataLossError",
    "DataLossWarning",
    "DeadlineExceededError",
    "DsnbError",
    "DsnbWarning",
    "FailedPreconditionError",
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnavailableError",
    "UnimplementedError",
    "UserCodeError",
)


class DsnbError(Exception):
    """The base class of all errors that dsnb raises itself.

    Args:
        what: What happened, with the value, the variable or the address.
        did: What dsnb did about it ("nothing was started", "reading continues").
        hint: What to try.

    Example:
        >>> print(DsnbError("the port 80 is taken", did="nothing was started", hint="leave `port` out"))
        the port 80 is taken
          dsnb: nothing was started
          try:  leave `port` out
    """

    def __init__(self, what: str, *, did: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.did = did
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.did:
            lines.append(f"  dsnb: {self.did}")
        if self.hint:
            lines.append(f"  try:  {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # `Exception.__reduce__` would lose `did` and `hint`.
        return (_rebuild, (type(self), self.what, self.did, self.hint))


def _rebuild(cls: type[DsnbError], what: str, did: str, hint: str) -> DsnbError:
    return cls(what, did=did, hint=hint)


class InvalidArgumentError(DsnbError, ValueError):
    """A value that is never valid, whatever the state of the service."""


class NotFoundError(DsnbError, LookupError):
    """There is no service, job, dataset, task or file by that name."""

    # The three-part text, whatever the built-in base class prints.
    __str__ = DsnbError.__str__


class AlreadyExistsError(DsnbError):
    """The name or the port is already in use."""


class FailedPreconditionError(DsnbError, RuntimeError):
    """The call is valid, but not in the present state."""


class UnimplementedError(DsnbError, NotImplementedError):
    """dsnb cannot do this, or cannot do it yet."""


class PermissionDeniedError(DsnbError, PermissionError):
    """The token is missing or wrong."""

    __str__ = DsnbError.__str__


class ResourceExhaustedError(DsnbError, RuntimeError):
    """A stated limit (of readers, of bytes) is reached."""


class UnavailableError(DsnbError, ConnectionError):
    """A server cannot be reached."""

    __str__ = DsnbError.__str__


class DeadlineExceededError(DsnbError, TimeoutError):
    """A wait reached its stated time-out."""

    __str__ = DsnbError.__str__


class CancelledError(DsnbError):
    """The reader, the task or the server was stopped."""


class DataLossError(DsnbError):
    """Data that cannot be recovered."""


class UserCodeError(DsnbError):
    """A user's function failed, and its own error cannot be rebuilt here.

    Also replaces errors that would be mistaken for control flow: StopIteration, GeneratorExit, KeyboardInterrupt and
    SystemExit raised by a user's function.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the beginning of a hint with the most similar known names; empty if none is similar.

    Example:
        >>> did_you_mean("trian", ["train", "test"])
        "did you mean 'train'? "
    """
    found = difflib.get_close_matches(name, sorted(known), n=3)
    return f"did you mean {' or '.join(map(repr, found))}? " if found else ""


def keep_frames(error: BaseException, wanted: Callable[[FrameType], bool]) -> None:
    """Remove all frames from an error's traceback but those that `wanted` accepts."""
    kept: TracebackType | None = None
    for entry in reversed([entry for entry in traceback_entries(error) if wanted(entry.tb_frame)]):
        # `tb_lineno` is None if an interrupt hit an instruction without a line.
        line = entry.tb_lineno or entry.tb_frame.f_code.co_firstlineno
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, line)
    error.__traceback__ = kept


def traceback_entries(error: BaseException) -> Iterator[TracebackType]:
    """Yield the entries of an error's traceback, from the outermost call on."""
    entry = error.__traceback__
    while entry is not None:
        yield entry
        entry = entry.tb_next


def mark_out_of_band(error: Exception) -> Exception:
    """Mark an error that does not replace an element: no element is missing between those before and after it."""
    error.dsnb_out_of_band = True  # type: ignore[attr-defined]  # errors of any class, for instance a warning turned into an error
    return error


def is_out_of_band(error: Exception) -> bool:
    """Whether an error was marked by `mark_out_of_band`; errors of user code never are."""
    return bool(getattr(error, "dsnb_out_of_band", False))


def is_element_error(error: Exception) -> bool:
    """Whether an error raised by a pipeline takes the place of an element."""
    return not isinstance(error, CancelledError) and not is_out_of_band(error)


def warn(text: str, kind: type[Warning]) -> None:
    """Emit a warning that points to the innermost line outside of dsnb, normally the user's cell."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "dsnb":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)


class DsnbWarning(UserWarning):
    """The base class of all warnings of dsnb."""


class CacheWarning(DsnbWarning):
    """A cache could not keep something, had to redo work, or keeps it in an unintended way. The data are correct."""


class DataLossWarning(DsnbWarning):
    """Elements or splits that will not arrive, with their number and the reason."""


def __dir__() -> list[str]:
    return sorted(__all__)

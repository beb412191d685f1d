"""What dsnb raises and warns with.

DsnbError
├── InvalidArgumentError      (ValueError)           a value that can never be right
├── NotFoundError             (LookupError)          no service, job, dataset or file by that name
├── AlreadyExistsError                               the name or the port is taken
├── FailedPreconditionError   (RuntimeError)         right in itself, wrong in this state
├── UnimplementedError        (NotImplementedError)  dsnb cannot do this (yet)
├── PermissionDeniedError     (PermissionError)      the token is missing or wrong
├── ResourceExhaustedError    (RuntimeError)         a stated limit is reached
├── UnavailableError          (ConnectionError)      a server that cannot be reached
├── DeadlineExceededError     (TimeoutError)         a wait that came to its end
├── CancelledError                                   the reader, task or server was stopped
├── DataLossError                                    data that cannot be had again
└── UserCodeError                                    a function of the user's failed and its own error cannot be rebuilt

DsnbWarning (UserWarning)
├── CacheWarning                                     what a cache could not keep or had to do anew, and why
└── DataLossWarning                                  elements or splits that will not come

Every error is a small page of documentation: what happened, what dsnb did about it, what to try. The three parts are
fields; the text is built from them, so that a notebook, a log and the wire show the same words.
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
    """The base of all that dsnb raises by itself.

    Args:
        what: What happened, naming the value, the variable or the address.
        did: What dsnb did about it ("nothing was started", "reading goes on").
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
        # Exception's own reduction would lose the keyword fields.
        return (_rebuild, (type(self), self.what, self.did, self.hint))


def _rebuild(cls: type[DsnbError], what: str, did: str, hint: str) -> DsnbError:
    return cls(what, did=did, hint=hint)


class InvalidArgumentError(DsnbError, ValueError):
    """A value that can never be right, whatever the state of the service."""


class NotFoundError(DsnbError, LookupError):
    """There is no service, job, dataset, task or file by that name."""

    # LookupError's text would be taken from KeyError-like subclasses; ours is the page.
    __str__ = DsnbError.__str__


class AlreadyExistsError(DsnbError):
    """The name or the port is taken."""


class FailedPreconditionError(DsnbError, RuntimeError):
    """The call is right in itself, but not in the present state."""


class UnimplementedError(DsnbError, NotImplementedError):
    """dsnb cannot do this, or cannot do it yet."""


class PermissionDeniedError(DsnbError, PermissionError):
    """The token is missing or wrong."""

    __str__ = DsnbError.__str__


class ResourceExhaustedError(DsnbError, RuntimeError):
    """A stated limit (of readers, of bytes) is reached."""


class UnavailableError(DsnbError, ConnectionError):
    """A server that cannot be reached."""

    __str__ = DsnbError.__str__


class DeadlineExceededError(DsnbError, TimeoutError):
    """A wait that came to its stated end."""

    __str__ = DsnbError.__str__


class CancelledError(DsnbError):
    """The reader, the task or the server was stopped."""


class DataLossError(DsnbError):
    """Data that cannot be had again."""


class UserCodeError(DsnbError):
    """A function of the user's failed, and its own error cannot be rebuilt here.

    Also stands for errors that would be mistaken for control flow: StopIteration, GeneratorExit, KeyboardInterrupt and
    SystemExit raised by a user's function.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The beginning of a hint that names what was probably meant; empty where nothing is like it.

    Example:
        >>> near("trian", ["train", "test"])
        "did you mean 'train'? "
    """
    found = difflib.get_close_matches(name, sorted(known), n=3)
    return f"did you mean {' or '.join(map(repr, found))}? " if found else ""


def keep_frames(error: BaseException, wanted: Callable[[FrameType], bool]) -> None:
    """Leave an error's traceback only the frames that are wanted."""
    kept: TracebackType | None = None
    for entry in reversed([entry for entry in traceback_entries(error) if wanted(entry.tb_frame)]):
        # An interrupt may come at an instruction that stands on no line.
        line = entry.tb_lineno or entry.tb_frame.f_code.co_firstlineno
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, line)
    error.__traceback__ = kept


def traceback_entries(error: BaseException) -> Iterator[TracebackType]:
    """The entries of an error's traceback, from the outermost call on."""
    entry = error.__traceback__
    while entry is not None:
        yield entry
        entry = entry.tb_next


def mark_out_of_band(error: Exception) -> Exception:
    """Mark an error as one that stands in no element's place: the elements before and behind it follow each other."""
    error.dsnb_beside = True  # type: ignore[attr-defined]  # of any class: a warning that is an error, for instance
    return error


def is_out_of_band(error: Exception) -> bool:
    """Whether an error was marked so; one of the user's never is."""
    return bool(getattr(error, "dsnb_beside", False))


def is_element_error(error: Exception) -> bool:
    """Whether an error that a pipeline raised stands in an element's place."""
    return not isinstance(error, CancelledError) and not is_out_of_band(error)


def warn(text: str, kind: type[Warning]) -> None:
    """Warn at the line outside of dsnb that led here: a user's cell, not ours."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "dsnb":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)


class DsnbWarning(UserWarning):
    """The base of all warnings of dsnb."""


class CacheWarning(DsnbWarning):
    """What a cache could not keep, had to do anew, or keeps as it was not meant, and why. Nothing wrong is served."""


class DataLossWarning(DsnbWarning):
    """Elements or splits that will not come, with how many and why."""


def __dir__() -> list[str]:
    return sorted(__all__)

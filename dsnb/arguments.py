"""Checks of public arguments: rules are declared next to each signature and applied at each call.

Theory of operation. `checked` wraps a public function, method or class. A call is first compared with the signature: an
unknown, missing or surplus argument is refused by name. Then each given argument goes through its rule. A rule is a
function of the argument's name and value. It returns the value in the form that the function needs (an `int` for
NumPy's integers, a `str` for a path) or raises an `InvalidArgumentError` that names the argument. Arguments annotated
as `bool` need no rule. Defaults are not checked.

When one of dsnb's errors leaves a checked function, dsnb's frames are removed from it, including the wrapper's, so that
the traceback ends at the user's line. Rules that involve several arguments are checked by the function itself.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from itertools import islice
from types import FrameType, FunctionType
from typing import Any, Final, ParamSpec, Protocol, TypeVar, overload

from dsnb.errors import DsnbError, InvalidArgumentError, did_you_mean, keep_frames
from dsnb.system_limits import limit_error

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

Rule = Callable[[str, Any], Any]
"""Takes an argument's name and value; returns the value to use, or raises `InvalidArgumentError`."""

MAX_INT64: Final = (1 << 63) - 1
"""The largest integer accepted: the limit of 64 bits in NumPy, on disk and in messages."""
_LONGEST_TEXT: Final = 1_000
_MOST_ITEMS: Final = 1_000_000
_SHOWN: Final = 80


class WrongCallError(InvalidArgumentError, TypeError):
    """A call that does not fit the signature: an argument is unknown, missing, surplus or given twice."""


# ---- the decorator


class _Checked(Protocol):
    @overload
    def __call__(self, wrapped: type[C], /) -> type[C]: ...
    @overload
    def __call__(self, wrapped: Callable[P, R], /) -> Callable[P, R]: ...


def checked(**rules: Rule) -> _Checked:
    """Check the arguments of a public function, method or class at each call.

    Args:
        rules: The rule of each argument that is not a `bool`.

    Example:
        >>> @checked(size=integer(1))
        ... def batch(size, drop_remainder=False):
        ...     return size
        >>> batch(0)
        Traceback (most recent call last):
        dsnb.errors.InvalidArgumentError: `size` is 0
          try:  pass 1 or more
    """

    def decorate(wrapped: Any) -> Any:
        if not isinstance(wrapped, type):
            return _wrapper(wrapped, rules)
        wrapped.__init__ = _wrapper(wrapped.__init__, rules)  # type: ignore[misc]  # the same signature
        return wrapped

    return decorate


def _wrapper(function: Callable[..., Any], rules: Mapping[str, Rule]) -> Callable[..., Any]:
    bound, error_of_ours, without_our_frames = _Signature(function, rules).bind, DsnbError, _strip_internal_frames
    refused_by_system, explain = (OSError, RuntimeError), _raise_if_system_limit

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            args, kwargs = bound(args, kwargs)
            return function(*args, **kwargs)
        except error_of_ours as error:
            without_our_frames(error)
            raise  # a bare `raise`: `raise error` would add a frame
        except refused_by_system as error:
            try:
                explain(error)
            except error_of_ours as page:
                without_our_frames(page)
                raise
            raise

    # With the wrapped function's globals: doctest collects a function only if its globals are the module's.
    made = FunctionType(call.__code__, function.__globals__, closure=call.__closure__)
    return wraps(function)(made)


def _strip_internal_frames(error: BaseException | None) -> None:
    """Remove the frames of dsnb and the standard library from an error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        keep_frames(error, _is_user_frame)
        error = error.__cause__ or error.__context__


def _raise_if_system_limit(error: BaseException) -> None:
    """Raise the explanation of a system limit, if the error was caused by one."""
    limit = limit_error(error)
    if limit is not None:
        raise limit from error


def _is_user_frame(frame: FrameType) -> bool:
    if frame.f_code.co_filename == __file__:  # a wrapper: it has the user's globals if it wraps a user's function
        return False
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package != "dsnb" and package not in sys.stdlib_module_names


class _Signature:
    """The parameters of a function with their rules. Inspected at the first call, so that importing stays fast."""

    def __init__(self, function: Callable[..., Any], rules: Mapping[str, Rule]) -> None:
        self._function = function
        self._rules = rules
        self._inspected = False

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, each as its rule returns it."""
        if not self._inspected:
            self._inspect()
        rest = self._surplus(args) if len(args) > len(self._positional) else ()
        pairs = zip(self._positional, args, strict=False)
        given = tuple([value if rule is None else rule(name, value) for (name, rule), value in pairs]) + rest
        named = {name: self._keyword(name, value) for name, value in kwargs.items()} if kwargs else kwargs
        self._check_complete(given, kwargs)
        return given, named

    def rules(self) -> dict[str, Rule | None]:
        """The rule of each parameter that has one, `*args` included; None for a parameter without a rule."""
        if not self._inspected:
            self._inspect()
        rest = [self._rest] if self._rest is not None else []
        return {**dict(self._positional), **self._by_keyword, **dict(rest)}

    def _inspect(self) -> None:
        parameters = inspect.signature(self._function).parameters.values()
        rules = {one.name: self._rules.get(one.name) or _BY_ANNOTATION.get(one.annotation) for one in parameters}

        def of(kind: Any) -> list[inspect.Parameter]:
            return [one for one in parameters if one.kind is kind]

        only, either = of(inspect.Parameter.POSITIONAL_ONLY), of(inspect.Parameter.POSITIONAL_OR_KEYWORD)
        keyword = [*either, *of(inspect.Parameter.KEYWORD_ONLY)]
        self._positional = [(one.name, rules[one.name]) for one in (*only, *either)]
        self._by_keyword = {one.name: rules[one.name] for one in keyword}
        self._required = [one.name for one in (*only, *keyword) if one.default is one.empty]
        last = max((at for at, one in enumerate((*only, *either)) if one.default is one.empty), default=-1)
        self._sufficient_count = last + 1 if len(self._required) <= last + 1 else sys.maxsize
        """With at least this many positional arguments and no others, no argument is missing."""
        self._rest = next(((one.name, rules[one.name]) for one in of(inspect.Parameter.VAR_POSITIONAL)), None)
        self._takes_any_keyword = bool(of(inspect.Parameter.VAR_KEYWORD))
        self._inspected = True

    def _surplus(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments after the named parameters; refused unless the function takes `*args`."""
        if self._rest is not None:
            (name, rule), surplus = self._rest, args[len(self._positional) :]
            return surplus if rule is None else tuple(rule(name, value) for value in surplus)
        known = [name for name, _ in self._positional if name not in {"self", "cls"}]
        takes = f"at most {len(known)} without a name ({', '.join(known)})" if known else "none without a name"
        raise WrongCallError(
            f"{self._name} was given {len(args) - len(self._positional) + len(known)} arguments, and takes {takes}",
            hint=_signature_hint(self._by_keyword),
        )

    def _keyword(self, name: str, value: Any) -> Any:
        """The value of an argument that was given by name, as its rule returns it."""
        if name not in self._by_keyword and not self._takes_any_keyword:
            raise WrongCallError(
                f"{self._name} has no argument `{name}`",
                hint=did_you_mean(name, self._by_keyword) + _signature_hint(self._by_keyword),
            )
        rule = self._by_keyword.get(name)
        return value if rule is None else rule(name, value)

    def _check_complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not kwargs and len(args) >= self._sufficient_count:
            return
        there = {name for name, _ in self._positional[: len(args)]}
        if there and not there.isdisjoint(kwargs):
            twice = next(name for name in kwargs if name in there)
            raise WrongCallError(f"{self._name} was given `{twice}` twice", hint=f"leave one of them out: `{twice}`")
        missing = [name for name in self._required if name not in there and name not in kwargs]
        if missing:
            raise WrongCallError(
                f"{self._name} needs `{'` and `'.join(missing)}`", hint=_signature_hint(self._by_keyword)
            )

    @property
    def _name(self) -> str:
        parts = self._function.__qualname__.split(".")
        return f"{parts[-2] if parts[-1] == '__init__' else parts[-1]}()"


def _signature_hint(names: Iterable[str]) -> str:
    listed = ", ".join(name for name in names if name not in {"self", "cls"})
    return f"it takes {listed}" if listed else "it takes no arguments"


# ---- rules


def integer(least: int | None = None, most: int = MAX_INT64, hint: str = "") -> Rule:
    """A rule for an integer within bounds, also NumPy's; not a `bool`."""
    lowest = -MAX_INT64 - 1 if least is None else least
    bounds = f"{lowest:,} to {most:,}" if most < MAX_INT64 else f"{lowest:,} or more"

    def rule(name: str, value: Any) -> int:
        if type(value) is not int:
            value = _index(name, value, hint)
        if lowest <= value <= most:
            return value  # type: ignore[no-any-return]
        if -MAX_INT64 - 1 <= value <= MAX_INT64:
            raise InvalidArgumentError(f"`{name}` is {value}", hint=hint or f"pass {bounds}")
        raise InvalidArgumentError(f"`{name}` has more than 64 bits", hint=hint or f"pass at most {MAX_INT64:,}")

    return rule


def _index(name: str, value: Any, hint: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)} ({type(value).__name__}), not a whole number", hint=hint or "pass an int"
        ) from None


def number(hint: str, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> Rule:
    """A rule for a finite number within bounds, also NumPy's; not a `bool`."""

    def rule(name: str, value: Any) -> float:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        try:
            given = float(value) if real else math.nan
        except OverflowError:  # an int of more than 300 digits
            given = math.inf
        if not (above < given and least <= given <= most and math.isfinite(given)):
            raise InvalidArgumentError(f"`{name}` is {short_repr(value)}", hint=hint)
        return given

    return rule


seconds: Final = number("pass a number of seconds above 0, at most 1e9", above=0.0, most=1e9)
milliseconds: Final = integer(1, 10**12, "pass a number of milliseconds above 0, at most 10**12")
nbytes: Final = integer(1, hint="pass a number of bytes, 1 or more")
port: Final = integer(0, 65535, "pass 0 for a free port, or a port from 1 to 65535")


def boolean(name: str, value: Any) -> bool:
    """A rule for a `bool`, also NumPy's."""
    if isinstance(value, bool):
        return value
    numpy = sys.modules.get("numpy")  # a caller that passes NumPy's bool has imported NumPy
    if numpy is not None and isinstance(value, numpy.bool_):
        return bool(value)
    raise InvalidArgumentError(f"`{name}` is {short_repr(value)}, not a truth value", hint="pass True or False")


def text(name: str, value: Any) -> str:
    """A rule for a string that can be sent, stored and shown on one line: not empty, at most 1,000 characters."""
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f"`{name}` must be a string, got {type(value).__name__}", hint='pass text, as in "train"'
        )
    if not value:
        raise InvalidArgumentError(f"`{name}` must not be empty", hint="pass one character or more, or leave it out")
    if len(value) > _LONGEST_TEXT or not value.isprintable():
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)}, of {len(value):,} characters",
            hint=f"pass at most {_LONGEST_TEXT:,} characters, without line breaks and other control characters",
        )
    return str(value)


def encodable(name: str, value: Any) -> str:
    """A rule for a string of any length that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"`{name}` must be a string, got {type(value).__name__}", hint="pass text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)}, which has characters that UTF-8 has not", hint="pass other text"
        ) from None
    return str(value)


def path(name: str, value: Any) -> str:
    """A rule for the path of a file or folder; returns a `str` with `~` expanded."""
    given = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(given, str):
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)} ({type(value).__name__}), not a path",
            hint="pass a str or a pathlib.Path; os.fsdecode(...) makes text of bytes",
        )
    if not given or "\0" in given or not _is_encodable_path(given):
        raise InvalidArgumentError(
            f"`{name}` is {'empty' if not given else f'{short_repr(value)}, which no path can be'}",
            hint='pass the path of a file or folder, as in "data/train"',
        )
    return os.path.expanduser(given)


def _is_encodable_path(given: str) -> bool:
    """Whether the file system's encoding can represent a path."""
    try:
        os.fsencode(given)
    except UnicodeEncodeError:
        return False
    return True


def buffer(name: str, value: Any, hint: str = "pass bytes, as TFRecordDataset gives them") -> bytes:
    """A rule for `bytes` or an object that exports its bytes."""
    if type(value) is bytes:
        return value
    try:
        return bytes(memoryview(value))
    except (TypeError, BufferError):
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)} ({type(value).__name__}), not bytes", hint=hint
        ) from None


def function(
    name: str, value: Any, hint: str = "pass the function itself, as in map(decode), not its result, map(decode(x))"
) -> Callable[..., Any]:
    """A rule for a callable."""
    if not callable(value):
        what = f"`{name}` is {short_repr(value)} ({type(value).__name__}), not a function"
        raise InvalidArgumentError(what, hint=hint)
    return value  # type: ignore[no-any-return]


def function_of(*parameters: str) -> Rule:
    """A rule for a function that can be called with these parameters; the error names them."""

    def rule(name: str, value: Any) -> Callable[..., Any]:
        called = f"is called with {', '.join(parameters)}" if parameters else "is called without arguments"
        return check_accepts(name, function(name, value), len(parameters), called)

    return rule


def check_accepts(name: str, value: Callable[..., Any], count: int, called: str) -> Callable[..., Any]:
    """Return the function if it can be called with `count` arguments, or if its signature is unknown.

    Args:
        name: Name of the argument.
        value: The function.
        count: The number of arguments.
        called: How the function is called, for the error, as in "is called with 1 argument".
    """
    if isinstance(value, FunctionType) and _accepts(value, count):
        return value
    try:
        # Not through `__wrapped__`: a decorated function may take other arguments than the one it wraps.
        signature = inspect.signature(value, follow_wrapped=False)
    except (TypeError, ValueError):  # many functions written in C have no signature
        return value
    try:
        signature.bind(*range(count))
    except TypeError:
        takes = ", ".join(str(one.replace(annotation=one.empty)) for one in signature.parameters.values())
        raise InvalidArgumentError(
            f"`{name}` takes {f'({takes:.{_SHOWN}})' if takes else 'no arguments'}, and {called}",
            hint=f"pass a function of {count} argument{'' if count == 1 else 's'}",
        ) from None
    return value


def _accepts(value: FunctionType, count: int) -> bool:
    """Whether a plain function accepts `count` arguments. Fifty times as fast as `inspect.signature`."""
    code = value.__code__
    least = code.co_argcount - len(value.__defaults__ or ())
    most = sys.maxsize if code.co_flags & inspect.CO_VARARGS else code.co_argcount
    return least <= count <= most and code.co_kwonlyargcount <= len(value.__kwdefaults__ or ())


def one_of(*known: Any, hint: str = "") -> Rule:
    """A rule for one of a few values; the error suggests the most similar string."""
    names = [value for value in known if isinstance(value, str)]
    listed = " or ".join(filter(None, [", ".join(map(repr, known[:-1])), repr(known[-1])]))

    def rule(name: str, value: Any) -> Any:
        for one in known:
            if value is one or (isinstance(one, str) and isinstance(value, str) and value == one):
                return one
        likely = did_you_mean(value, names) if isinstance(value, str) else ""
        raise InvalidArgumentError(f"`{name}` is {short_repr(value)}", hint=likely + (hint or f"pass {listed}"))

    return rule


def instance(*classes: type, hint: str) -> Rule:
    """A rule for an instance of one of these classes."""

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, classes):
            raise InvalidArgumentError(f"`{name}` is {short_repr(value)} ({type(value).__name__})", hint=hint)
        return value

    return rule


def optional(rule: Rule, none: Any = None) -> Rule:
    """A rule that also allows None, and returns `none` for it."""
    return lambda name, value: none if value is None else rule(name, value)


def each(rule: Rule, hint: str = "pass a list") -> Rule:
    """A rule for a list of values that `rule` allows; returns a tuple. Accepts any finite iterable except text."""

    def made(name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes, bytearray, os.PathLike)) or not isinstance(value, Iterable):
            raise InvalidArgumentError(
                f"`{name}` is {short_repr(value)} ({type(value).__name__}), not a list", hint=hint
            )
        try:
            items = tuple(islice(value, _MOST_ITEMS + 1))
        except TypeError:  # an array of zero dimensions
            raise InvalidArgumentError(f"`{name}` is {short_repr(value)}, not a list", hint=hint) from None
        if len(items) > _MOST_ITEMS:
            raise InvalidArgumentError(f"`{name}` has more than {_MOST_ITEMS:,} items", hint=hint)
        return tuple(rule(name, item) for item in items)

    return made


def anything(name: str, value: Any) -> Any:
    """A rule that allows everything: the function itself checks the value, or no value is wrong."""
    del name
    return value


def short_repr(value: Any) -> str:
    """A value as shown in an error: on one line, shortened to 80 characters."""
    try:
        full_text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - a user's own __repr__, or an int of too many digits
        full_text = f"a {type(value).__name__}"
    return full_text if len(full_text) <= _SHOWN else f"{full_text[: _SHOWN - 1]}…"


_BY_ANNOTATION: Final[Mapping[str, Rule]] = {"bool": boolean, "bool | None": optional(boolean)}

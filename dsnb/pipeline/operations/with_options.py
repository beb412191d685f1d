"""`Dataset.with_options`: how a whole pipeline runs, and what its elements look like."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from msgspec.structs import replace

from dsnb.arguments import anything, boolean, checked, instance, optional
from dsnb.errors import InvalidArgumentError, did_you_mean
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext, Operation, Unchanged, walk


def options_rule(name: str, value: Any) -> Options:
    """Check that a value is an `Options` object."""
    rule = instance(Options, hint="pass an Options object, as in dsnb.Options(writable=True)")
    options: Options = rule(name, value)
    return options


@checked()
@dataclass(kw_only=True)
class Options:
    """Settings for `Dataset.with_options`; they hold for the whole pipeline, before and after it (as in tf.data).

    Attributes:
        deterministic: True: a "distributed_epoch" read yields its elements in one order, that of the splits, for any
            number of workers; `distribute` refuses operations before it that mix splits, such as `shuffle`. False lets
            `map` and `interleave` return what is ready first, if they use threads and their own
            argument does not say otherwise. None means True.
        writable: True returns copies that the user may write to; otherwise arrays are read-only. None means False.
        receipts: True has readers of a service add a digest of the contents of what they consumed to the receipt of the
            epoch, see `DataService.receipt`. None means False.

    Raises:
        InvalidArgumentError: for other values, and for unknown settings.

    Example:
        >>> options = Options()
        >>> options.deterministic = False
        >>> options
        Options(deterministic=False, writable=None, receipts=None)
    """

    deterministic: bool | None = None
    writable: bool | None = None
    receipts: bool | None = None

    @checked(name=anything, value=anything)
    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            known = list(self.__dataclass_fields__)
            raise InvalidArgumentError(
                f"there is no option `{name}`", hint=f"{did_you_mean(name, known)}there are {' and '.join(known)}"
            )
        super().__setattr__(name, optional(boolean)(name, value))

    @checked(later=options_rule)
    def merge(self, later: Options) -> Options:
        """Return these settings, overridden by those that `later` sets (as in tf.data).

        Example:
            >>> Options(deterministic=False, writable=True).merge(Options(deterministic=True))
            Options(deterministic=True, writable=True, receipts=None)
        """
        chosen = {field.name: getattr(later, field.name) for field in fields(self)}
        return Options(**{name: getattr(self, name) if value is None else value for name, value in chosen.items()})


class WithOptions(Unchanged, frozen=True, kw_only=True):
    """The input unchanged; the settings are read from the tree before anything is built."""

    passes_through = True
    deterministic: bool | None = None
    writable: bool | None = None
    receipts: bool | None = None

    @property
    def options(self) -> Options:
        """The settings."""
        return Options(deterministic=self.deterministic, writable=self.writable, receipts=self.receipts)

    @property
    def name(self) -> str:
        given = vars(self.options)
        return f"with_options({', '.join(f'{name}={value}' for name, value in given.items() if value is not None)})"

    def __dsnb_result__(self) -> Operation:
        if self.deterministic is None:
            return self.inputs[0]
        plain = replace(self, writable=None, receipts=None)
        return self if plain == self else plain

    def build(self, context: BuildContext) -> Stage:
        """Return the input's own stage."""
        (stage,) = self.build_inputs(context)
        return stage


def options_of(operation: Operation) -> Options:
    """Return the settings of a pipeline; later ones override earlier ones."""
    found = Options()
    for step in walk(operation):
        if isinstance(step, WithOptions):
            found = found.merge(step.options)
    return found


def with_options_applied(operation: Operation, context: BuildContext) -> BuildContext:
    """Return the context in which a whole pipeline is built: with its settings."""
    options = options_of(operation)
    return replace(context, deterministic=options.deterministic is not False, receipts=options.receipts is True)


def build_pipeline(operation: Operation, context: BuildContext) -> Stage:
    """Build the stage of a whole pipeline with its settings applied."""
    return operation.build(with_options_applied(operation, context))

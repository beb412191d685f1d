"""`Dataset`: a pipeline as a user writes it. It describes; nothing runs until somebody iterates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from dsnb.arguments import (
    anything,
    check_accepts,
    checked,
    each,
    function,
    function_of,
    instance,
    integer,
    optional,
    short_repr,
)
from dsnb.elements.spec import spec_rule
from dsnb.elements.structure import flatten, structure_of
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline import validate
from dsnb.pipeline.caching import Caching
from dsnb.pipeline.engine.iterator import ElementIterator
from dsnb.pipeline.graph import describe
from dsnb.pipeline.operation import INFINITE_CARDINALITY, Operation
from dsnb.pipeline.operations.choose_from_datasets import ChooseFromDatasets
from dsnb.pipeline.operations.replicate import Replicate
from dsnb.pipeline.operations.sample_from_datasets import SampleFromDatasets
from dsnb.pipeline.operations.with_options import options_of
from dsnb.pipeline.operations.zip import Zip
from dsnb.pipeline.position import DatasetIteration, IterationCounter
from dsnb.pipeline.sources.arrays import column_of, flatten_input, tensor_of
from dsnb.pipeline.sources.files import ListFiles, Pattern, matching_files, paths
from dsnb.pipeline.sources.generator import Generator
from dsnb.pipeline.sources.range import Range
from dsnb.pipeline.sources.slices import Slices
from dsnb.pipeline.sources.tensors import Tensors
from dsnb.pipeline.transformations import Transformations
from dsnb.pipeline.validate import dataset, datasets, operations_of_one_spec, sampling_weights, seed, weights_or_equal

AUTOTUNE: Final = validate.AUTOTUNE
"""For `num_parallel_calls` and `buffer_size`: let dsnb choose, by measuring while it runs."""


_OPERATION = instance(Operation, hint="begin with Dataset.from_tensor_slices, from_generator, range or list_files")
_BOUND = integer()
_generator = partial(
    function,
    hint="pass the function, not its result: from_generator(rows), not from_generator(rows()); it is called anew for "
    "each pass",
)


class UnknownLengthError(FailedPreconditionError, TypeError):
    """`len()` of a dataset that never ends, or whose length only running it could tell."""


class Dataset(Transformations, Caching):
    """A pipeline of elements: a source, and operations on it. Immutable; each method gives a new one.

    Elements come out as NumPy: arrays are read-only, Python's numbers are NumPy scalars, `str` and `bytes` stay, and
    tuples, dicts, lists and named tuples around them stay too. Each iteration runs the pipeline anew.

    Args:
        operation: The last operation of the tree. Users begin with `range`, `from_tensor_slices` and the like.

    Example:
        >>> ds = Dataset.range(10).filter(lambda x: x % 2 == 0).batch(3)
        >>> ds
        Dataset(range(10) | filter(<lambda>) | batch(3), element_spec=TensorSpec((None,), int64))
        >>> list(ds)
        [array([0, 2, 4]), array([6, 8])]
    """

    reads_files: ClassVar[bool] = False
    """Whether datasets of this class are made of the names of files, which FILE sharding then divides."""

    @checked(operation=_OPERATION)
    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._iterations = IterationCounter()

    def _derived(self, operation: Operation) -> Dataset:
        return Dataset(operation)

    def __reduce__(self) -> tuple[Any, ...]:
        # A dataset that a user's function refers to travels as what it does, not as how often it was read.
        return Dataset, (self.operation,)

    def __dsnb_fingerprint__(self) -> Any:
        # A cache of results knows a dataset by its pipeline.
        return self.operation

    @staticmethod
    @checked(args=anything)
    def range(*args: int) -> Dataset:
        """Count: `range(stop)`, `range(start, stop)` or `range(start, stop, step)`; int64 scalars (as in tf.data).

        Raises:
            InvalidArgumentError: for bounds that are no whole numbers, or a step of 0.

        Example:
            >>> [int(x) for x in Dataset.range(1, 8, 3)]
            [1, 4, 7]
        """
        if not 1 <= len(args) <= 3:
            raise InvalidArgumentError(
                f"`args` of range() are 1 to 3 numbers, not {len(args)}",
                hint="range(stop) or range(start, stop, step)",
            )
        names = ("stop",) if len(args) == 1 else ("start", "stop", "step")
        bounds = {name: _BOUND(name, value) for name, value in zip(names, args, strict=False)}
        if bounds.get("step") == 0:
            raise InvalidArgumentError("`step` is 0", hint="pass a step that gets from start to stop")
        return Dataset(Range(**bounds))

    @staticmethod
    @checked(tensors=anything)
    def from_tensors(tensors: Any) -> Dataset:
        """Make a dataset of one element, the value as it is (as in tf.data); lists are read as arrays.

        Raises:
            InvalidArgumentError: for what NumPy cannot read.

        Example:
            >>> list(Dataset.from_tensors([1, 2, 3]))
            [array([1, 2, 3])]
        """
        structure, leaves = flatten_input(tensors, "tensors")
        return Dataset(Tensors(structure=structure, leaves=tuple(tensor_of(leaf, "tensors") for leaf in leaves)))

    @staticmethod
    @checked(tensors=anything)
    def from_tensor_slices(tensors: Any) -> Dataset:
        """Make the rows of arrays the elements (as in tf.data): slices along the first dimension of every leaf.

        Lists are read as arrays. Arrays up to 1 MiB are copied here; larger ones are read when their rows are wanted:
        leave them unchanged while the dataset is in use. Elements are copies of the rows, so that a framework that
        writes into one does not change the array.

        Args:
            tensors: An array or list, or arrays nested in tuples and dicts, all of one length.

        Raises:
            InvalidArgumentError: for scalars, or leaves of different lengths, or what NumPy cannot read.

        Example:
            >>> list(Dataset.from_tensor_slices({"x": [1, 2], "y": ["a", "b"]}))
            [{'x': np.int64(1), 'y': 'a'}, {'x': np.int64(2), 'y': 'b'}]
        """
        structure, leaves = flatten_input(tensors, "tensors")
        columns = tuple(column_of(leaf, "tensors") for leaf in leaves)
        if not columns or any(not isinstance(column, tuple) and not column.ndim for column in columns):
            raise InvalidArgumentError(
                "`tensors` needs leaves with rows, and there is none, or one without a dimension",
                hint="pass arrays or lists; for a single element use from_tensors",
            )
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            raise InvalidArgumentError(
                f"`tensors` has leaves of the lengths {short_repr(lengths)}", hint="make their first dimensions equal"
            )
        return Dataset(Slices(structure=structure, columns=columns))

    @staticmethod
    @checked(generator=_generator, args=each(anything, "pass a tuple: args=(4,)"), element_spec=optional(spec_rule))
    def from_generator(generator: Callable[..., Any], args: tuple[Any, ...] = (), element_spec: Any = None) -> Dataset:
        """Make what a function yields the elements; it is called anew for each pass (as in tf.data).

        The generator may yield one buffer again and again: what it can still write to is copied.

        Args:
            generator: Called as `generator(*args)`; returns an iterable. When it raises, the error comes behind the
                elements before it, and then the end.
            args: Its arguments.
            element_spec: What it yields, as `TensorSpec`s; elements are then converted, and refused where they do not
                fit. None: whatever comes.

        Raises:
            InvalidArgumentError: for something that cannot be called, such as the generator's result.

        Example:
            >>> def squares(n):
            ...     for i in range(n):
            ...         yield i * i
            >>> [int(x) for x in Dataset.from_generator(squares, args=(4,))]
            [0, 1, 4, 9]
        """
        check_accepts("generator", generator, len(args), f"`args` has {len(args)}")
        return Dataset(Generator(function=generator, arguments=tuple(args), spec=element_spec))

    @staticmethod
    @checked(file_pattern=paths, seed=seed)
    def list_files(
        file_pattern: Pattern | Sequence[Pattern], shuffle: bool | None = None, seed: int | None = None
    ) -> Dataset:
        """Make the paths that match the elements, as `str` (as in tf.data).

        The pattern is looked up now, and the paths are absolute, so that workers elsewhere mean the same files. In a
        job that shares splits, each file goes to exactly one task.

        Args:
            file_pattern: One or several patterns with `*`, `?`, `[...]` and `**`.
            shuffle: Whether each pass has a new random order; None means True. Else they are sorted.
            seed: With a seed, pass k has the same order in every run.

        Raises:
            NotFoundError: when nothing matches.

        Example:
            >>> ds = Dataset.list_files("digits/train/*.png", seed=1)  # doctest: +SKIP
        """
        assert isinstance(file_pattern, tuple)  # by its rule
        operation = ListFiles(
            files=matching_files(file_pattern),
            shuffle=shuffle is not False,
            seed=seed,
        )
        return Dataset(operation)

    @staticmethod
    @checked(args=anything, datasets=anything)
    def zip(*args: Any, datasets: Any = None) -> Dataset:
        """Put one element of each dataset side by side; ends with the shortest (as in tf.data).

        Args:
            args: Datasets, or one nested structure of them: `zip(a, b)`, `zip((a, b))`, `zip({"x": a, "y": (b, c)})`.
            datasets: The structure by its old name.

        Raises:
            InvalidArgumentError: for anything that is no Dataset.

        Example:
            >>> [(int(x), y) for x, y in Dataset.zip(Dataset.range(9), Dataset.from_tensor_slices(["a", "b"]))]
            [(0, 'a'), (1, 'b')]
        """
        nested = datasets if datasets is not None else args[0] if len(args) == 1 else args
        try:
            structure = structure_of(nested)
        except (RecursionError, InvalidArgumentError) as error:
            why = error.what if isinstance(error, InvalidArgumentError) else "they contain themselves"
            raise InvalidArgumentError(f"`datasets` cannot be zipped: {why}", hint="zip(images, labels)") from None
        inputs = tuple(dataset("datasets", one).operation for one in flatten(nested))
        if not inputs:
            raise InvalidArgumentError("zip() got no `datasets`", hint="zip(images, labels)")
        return Dataset(Zip(inputs=inputs, structure=structure))

    @staticmethod
    @checked(datasets=datasets, choice_dataset=dataset)
    def choose_from_datasets(
        datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """Take each element from the dataset whose number another dataset gives (as in tf.data).

        In a job that shares splits, each task follows all choices by itself.

        Args:
            datasets: One or more, their elements of one kind.
            choice_dataset: Whole numbers from 0 to `len(datasets) - 1`; their end is the end.
            stop_on_empty_dataset: Whether the end of a chosen dataset is the end of all; else its choices are passed
                over.

        Raises:
            InvalidArgumentError: for no dataset, or some whose known element specs do not go together. While reading,
                in its place, for a choice that is no number of a dataset.

        Example:
            >>> letters = [Dataset.from_tensors(letter).repeat() for letter in "abc"]
            >>> "".join(Dataset.choose_from_datasets(letters, Dataset.range(3).repeat(2)))
            'abcabc'
        """
        choice = Replicate(inputs=(choice_dataset.operation,))
        inputs = (choice, *operations_of_one_spec(datasets))
        return Dataset(ChooseFromDatasets(inputs=inputs, stop_on_empty=stop_on_empty_dataset))

    @staticmethod
    @checked(datasets=datasets, weights=optional(sampling_weights), seed=seed)
    def sample_from_datasets(
        datasets: Sequence[Dataset],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Take each element from a dataset that is drawn at random (as in tf.data).

        Args:
            datasets: One or more, their elements of one kind.
            weights: How often each is drawn, in proportion; None for all alike. A dataset of weight 0 is left out.
            seed: With a seed, the draws are the same in every run.
            stop_on_empty_dataset: Whether the end of a drawn dataset is the end of all; else the others go on.
            rerandomize_each_iteration: Whether a seed gives each pass draws of its own; None means False. Without a
                seed each pass has its own.

        Raises:
            InvalidArgumentError: for no dataset, some whose known element specs do not go together, or weights that are
                negative, all zero, or of another number.

        Example:
            >>> ds = Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(10, 13)], seed=1)
            >>> sorted(int(x) for x in ds)
            [0, 1, 2, 10, 11, 12]
        """
        sources = operations_of_one_spec(datasets)
        drawn = weights_or_equal(weights, len(sources))
        operation = SampleFromDatasets(
            inputs=tuple(source for source, share in zip(sources, drawn, strict=True) if share),
            weights=tuple(share for share in drawn if share),
            seed=seed,
            stop_on_empty=stop_on_empty_dataset,
            rerandomize=rerandomize_each_iteration is True,
        )
        return Dataset(operation)

    @checked(transformation_func=function_of("this dataset"))
    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Hand this dataset to a function that returns another (as in tf.data), such as `dsnb.distribute(...)`.

        Raises:
            InvalidArgumentError: when the function returns something else.

        Example:
            >>> def first_two(ds):
            ...     return ds.take(2)
            >>> len(Dataset.range(5).apply(first_two))
            2
        """
        made = transformation_func(self)
        if not isinstance(made, Dataset):
            raise InvalidArgumentError(
                f"`transformation_func` returned {type(made).__name__}, not a Dataset",
                hint="return the new dataset",
            )
        return made

    @property
    def element_spec(self) -> Any:
        """A `TensorSpec` for each leaf of an element, or None where only running the pipeline could tell.

        Never runs anything; behind `map`, `flat_map` and `interleave` it is None.
        """
        return self.operation.element_spec

    @checked()
    def cardinality(self) -> int:
        """The number of elements, `INFINITE_CARDINALITY` (-1) or `UNKNOWN_CARDINALITY` (-2); by tf.data's rules.

        Example:
            >>> Dataset.range(10).batch(3).cardinality()
            4
        """
        return self.operation.cardinality

    @checked()
    def __len__(self) -> int:
        cardinality = self.operation.cardinality
        if 0 <= cardinality <= sys.maxsize:
            return cardinality
        if cardinality > 0:
            raise UnknownLengthError(
                f"{self._chain()} has {cardinality:,} elements, more than len() can tell", hint="use cardinality()"
            )
        endless = cardinality == INFINITE_CARDINALITY
        raise UnknownLengthError(
            "the dataset never ends" if endless else f"the length of {self._chain()} is not known before it is read",
            hint="`take(n)` first" if endless else "count while reading; `cardinality()` tells without an error",
        )

    def __bool__(self) -> bool:
        return True  # never a question of the length, which may be unknown

    @checked()
    def __iter__(self) -> ElementIterator:
        """One pass. It begins with the first `next`, or with `start()`; `close()` it or drop it to stop early."""
        writable = options_of(self.operation).writable is True
        return ElementIterator(
            writable=writable, iteration=DatasetIteration(operation=self.operation, counter=self._iterations)
        )

    @checked()
    def as_numpy_iterator(self) -> ElementIterator:
        """The same as `iter(dataset)`: elements are NumPy anyway (tf.data's name for it)."""
        return iter(self)

    def __repr__(self) -> str:
        spec = self.operation.element_spec
        known = "unknown until read" if spec is None else spec
        return f"{type(self).__name__}({self._chain()}, element_spec={known})"

    def _chain(self) -> str:
        return describe(self.operation)

"""`Dataset`: the description of a pipeline. Nothing runs until the dataset is iterated."""

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
"""For `num_parallel_calls` and `buffer_size`: dsnb chooses the value by measuring while the pipeline runs."""


_OPERATION = instance(Operation, hint="begin with Dataset.from_tensor_slices, from_generator, range or list_files")
_BOUND = integer()
_generator = partial(
    function,
    hint="pass the function, not its result: from_generator(rows), not from_generator(rows()); it is called anew for "
    "each pass",
)


class UnknownLengthError(FailedPreconditionError, TypeError):
    """`len()` of a dataset that never ends, or whose length is unknown until it is read."""


class Dataset(Transformations, Caching):
    """A pipeline: a source of elements, and operations on them. Immutable; each method returns a new dataset.

    Elements are NumPy: arrays are read-only, Python numbers become NumPy scalars, `str` and `bytes` stay, and so do the
    tuples, dicts, lists and named tuples around them. Each epoch runs the pipeline anew.

    Args:
        operation: The last operation of the tree. Users start with `range`, `from_tensor_slices` and the like.

    Example:
        >>> ds = Dataset.range(10).filter(lambda x: x % 2 == 0).batch(3)
        >>> ds
        Dataset(range(10) | filter(<lambda>) | batch(3), element_spec=TensorSpec((None,), int64))
        >>> list(ds)
        [array([0, 2, 4]), array([6, 8])]
    """

    reads_files: ClassVar[bool] = False
    """Whether datasets of this class read files given by name, which FILE sharding then divides."""

    @checked(operation=_OPERATION)
    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._iterations = IterationCounter()

    def _derived(self, operation: Operation) -> Dataset:
        return Dataset(operation)

    def __reduce__(self) -> tuple[Any, ...]:
        # A dataset that a user's function captures is pickled as its pipeline, without the number of epochs read.
        return Dataset, (self.operation,)

    def __dsnb_fingerprint__(self) -> Any:
        # A dataset is identified by its pipeline.
        return self.operation

    @staticmethod
    @checked(args=anything)
    def range(*args: int) -> Dataset:
        """Count: `range(stop)`, `range(start, stop)` or `range(start, stop, step)`; int64 scalars (as in tf.data).

        Args:
            args: One to three whole numbers.

        Raises:
            InvalidArgumentError: the bounds are not whole numbers, or the step is 0.

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
        """Make a dataset with the value as its only element (as in tf.data); lists are read as arrays.

        Args:
            tensors: An array, number or text, or several nested in tuples and dicts.

        Raises:
            InvalidArgumentError: NumPy cannot read the value.

        Example:
            >>> list(Dataset.from_tensors([1, 2, 3]))
            [array([1, 2, 3])]
        """
        structure, leaves = flatten_input(tensors, "tensors")
        return Dataset(Tensors(structure=structure, leaves=tuple(tensor_of(leaf, "tensors") for leaf in leaves)))

    @staticmethod
    @checked(tensors=anything)
    def from_tensor_slices(tensors: Any) -> Dataset:
        """Make a dataset of the rows of arrays (as in tf.data): slices along the first dimension of every leaf.

        Lists are read as arrays. Arrays up to 1 MiB are copied here. Larger ones are not: leave them unchanged while
        the dataset is in use. Elements are copies of the rows, so that a framework that writes into one does not change
        the array.

        Args:
            tensors: An array or list, or several nested in tuples and dicts, all of the same length.

        Raises:
            InvalidArgumentError: for scalars, leaves of different lengths, or values that NumPy cannot read.

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
        """Make a dataset of what a function yields; it is called anew for each epoch (as in tf.data).

        The generator may yield the same buffer repeatedly: values that it can still write to are copied.

        Args:
            generator: Called as `generator(*args)`; returns an iterable. If it raises, the error follows the elements
                before it, and then comes the end.
            args: Arguments for the generator.
            element_spec: The elements' `TensorSpec`s. Elements are converted to it, and refused if they do not fit.
                None accepts any element.

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
        """Make a dataset of the paths that match a pattern, as `str` (as in tf.data).

        Patterns are expanded now, and the paths are absolute, so that all workers read the same files. In a job that
        shares splits, each file goes to exactly one task.

        Args:
            file_pattern: One or several patterns with `*`, `?`, `[...]` and `**`.
            shuffle: Whether each epoch has a new random order; None means True. Otherwise the paths are sorted.
            seed: With a seed, epoch k has the same order in every run.

        Raises:
            NotFoundError: no file matches.

        Example:
            >>> ds = Dataset.list_files("digits/train/*.png", seed=1)  # doctest: +SKIP
        """
        assert isinstance(file_pattern, tuple)  # its rule returns a tuple
        operation = ListFiles(
            files=matching_files(file_pattern),
            shuffle=shuffle is not False,
            seed=seed,
        )
        return Dataset(operation)

    @staticmethod
    @checked(args=anything, datasets=anything)
    def zip(*args: Any, datasets: Any = None) -> Dataset:
        """Combine one element of each dataset into one; ends with the shortest dataset (as in tf.data).

        Args:
            args: Datasets, or one nested structure of them: `zip(a, b)`, `zip((a, b))`, `zip({"x": a, "y": (b, c)})`.
            datasets: The structure, by tf.data's older keyword.

        Raises:
            InvalidArgumentError: for anything that is not a Dataset.

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
        """Take each element from the dataset whose index another dataset supplies (as in tf.data).

        In a job that shares splits, each task follows all indices by itself.

        Args:
            datasets: One or more datasets with compatible element specs.
            choice_dataset: Whole numbers from 0 to `len(datasets) - 1`; reading ends with them.
            stop_on_empty_dataset: Whether reading ends when a chosen dataset ends; otherwise later choices of it are
                skipped.

        Raises:
            InvalidArgumentError: there is no dataset, or known element specs are not compatible. While reading, in
                place of an element: the index is not that of a dataset.

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
            datasets: One or more datasets with compatible element specs.
            weights: The relative frequency of each; None for equal weights. A dataset of weight 0 is left out.
            seed: With a seed, the draws are the same in every run.
            stop_on_empty_dataset: Whether reading ends when a drawn dataset ends; otherwise the others continue.
            rerandomize_each_iteration: Whether each epoch draws anew although there is a seed; None means False.
                Without a seed each epoch draws anew.

        Raises:
            InvalidArgumentError: there is no dataset, known element specs are not compatible, or the weights are
                negative, all zero, or not one for each dataset.

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
        """Pass this dataset to a function that returns another (as in tf.data), such as `dsnb.distribute(...)`.

        Args:
            transformation_func: Takes a Dataset and returns a Dataset.

        Raises:
            InvalidArgumentError: the function returns something else.

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
        """A `TensorSpec` for each leaf of an element, or None if only running the pipeline would show it.

        Never runs anything; after `map`, `flat_map` and `interleave` it is None.
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
        return True  # does not depend on the length, which may be unknown

    @checked()
    def __iter__(self) -> ElementIterator:
        """Start one epoch, at the first `next` or `start()`; `close()` the iterator or drop it to stop early."""
        writable = options_of(self.operation).writable is True
        return ElementIterator(
            writable=writable, iteration=DatasetIteration(operation=self.operation, counter=self._iterations)
        )

    @checked()
    def as_numpy_iterator(self) -> ElementIterator:
        """Return `iter(dataset)`, under tf.data's name: elements are NumPy in any case."""
        return iter(self)

    def __repr__(self) -> str:
        spec = self.operation.element_spec
        known = "unknown until read" if spec is None else spec
        return f"{type(self).__name__}({self._chain()}, element_spec={known})"

    def _chain(self) -> str:
        return describe(self.operation)

"""`Dataset`: the description of a pipeline. Nothing runs until the dataset is iterated.

Names, arguments and meaning of the methods are those that tf.data documents, so that users of tf.data change little
more than imports. Where dsnb differs, the docstring says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from dsnb.arguments import (
    anything,
    check_accepts,
    checked,
    each,
    function,
    function_of,
    instance,
    integer,
    nbytes,
    optional,
    path,
    seconds,
    short_repr,
)
from dsnb.cache.recordings.locations import parse_location, supports_expiry
from dsnb.cache.recordings.memory import RecordingMemory
from dsnb.elements.spec import spec_rule
from dsnb.elements.structure import flatten, structure_of
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.frameworks.jax_arrays import jax_placement
from dsnb.frameworks.placement import Placement
from dsnb.frameworks.torch_loader import make_loader
from dsnb.frameworks.torch_tensors import torch_placement
from dsnb.pipeline import validate
from dsnb.pipeline.engine.iterator import ElementIterator
from dsnb.pipeline.engine.padding import Padding
from dsnb.pipeline.graph import describe
from dsnb.pipeline.operation import INFINITE_CARDINALITY, Operation
from dsnb.pipeline.operations.batch import Batch
from dsnb.pipeline.operations.bucket_by_sequence_length import BucketBySequenceLength, Buckets
from dsnb.pipeline.operations.cache import CHUNK_BYTES, LEASE_S, Cache
from dsnb.pipeline.operations.choose_from_datasets import ChooseFromDatasets
from dsnb.pipeline.operations.concatenate import Concatenate
from dsnb.pipeline.operations.enumerate import Enumerate
from dsnb.pipeline.operations.fetch_items import random_access
from dsnb.pipeline.operations.filter import Filter
from dsnb.pipeline.operations.flat_map import FlatMap
from dsnb.pipeline.operations.group_by_window import GroupByWindow
from dsnb.pipeline.operations.ignore_errors import IgnoreErrors
from dsnb.pipeline.operations.interleave import DEFAULT_CYCLE, Interleave
from dsnb.pipeline.operations.map import Map
from dsnb.pipeline.operations.padded_batch import PaddedBatch
from dsnb.pipeline.operations.prefetch import Prefetch
from dsnb.pipeline.operations.random_map import RandomMap
from dsnb.pipeline.operations.rebatch import Rebatch
from dsnb.pipeline.operations.repeat import Repeat
from dsnb.pipeline.operations.replicate import Replicate
from dsnb.pipeline.operations.sample_from_datasets import SampleFromDatasets
from dsnb.pipeline.operations.scan import Scan
from dsnb.pipeline.operations.shard import Shard, checked_shard
from dsnb.pipeline.operations.shuffle import Shuffle
from dsnb.pipeline.operations.skip import Skip
from dsnb.pipeline.operations.take import Take
from dsnb.pipeline.operations.take_while import TakeWhile
from dsnb.pipeline.operations.unbatch import Unbatch
from dsnb.pipeline.operations.unique import Unique
from dsnb.pipeline.operations.window import Window
from dsnb.pipeline.operations.with_options import Options, WithOptions, options_of, options_rule
from dsnb.pipeline.operations.zip import Zip
from dsnb.pipeline.peeked_element import PeekedElement
from dsnb.pipeline.position import DatasetIteration, IterationCounter
from dsnb.pipeline.reading import first_element, reduced, single_element
from dsnb.pipeline.saving import save_dataset
from dsnb.pipeline.seen_specs import seen_spec
from dsnb.pipeline.sources.arrays import column_of, flatten_input, tensor_of
from dsnb.pipeline.sources.files import ListFiles, Pattern, matching_files, paths
from dsnb.pipeline.sources.generator import Generator
from dsnb.pipeline.sources.random_numbers import RandomNumbers
from dsnb.pipeline.sources.range import Range
from dsnb.pipeline.sources.saved_files import saved_files
from dsnb.pipeline.sources.slices import Slices
from dsnb.pipeline.sources.tensors import Tensors
from dsnb.pipeline.specs import are_compatible
from dsnb.pipeline.validate import (
    called_with_elements,
    count_or_all,
    cycle_length,
    dataset,
    datasets,
    operations_of_one_spec,
    parallel_calls,
    sampling_weights,
    seed,
    weights_or_equal,
)
from dsnb.storage.urls import absolute, check_file_url, is_url, without_password

AUTOTUNE: Final = validate.AUTOTUNE
"""For `num_parallel_calls` and `buffer_size`: dsnb chooses the value by measuring while the pipeline runs."""


_TF_DATA_NAMES: Final = {
    "snapshot": "`cache(folder)` does the same: the first epoch is recorded while it is read, and later epochs and "
    "other runs read the recording",
}
"""Methods of tf.data's `Dataset` that have another name here, and what to use."""

_OPERATION = instance(Operation, hint="begin with Dataset.from_tensor_slices, from_generator, range or list_files")
_BOUND = integer()
_ROWS = integer(1)
_generator = partial(
    function,
    hint="pass the function, not its result: from_generator(rows), not from_generator(rows()); it is called again for "
    "each pass",
)


def _pinning(name: str, value: Any) -> bool | str:
    """Check and return whether to use page-locked memory."""
    if isinstance(value, str) and value == "auto":
        return value
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"`{name}` is {short_repr(value)}", hint='pass True, False or "auto"')
    return value


def _batch_sizes(name: str, value: Any) -> tuple[int, ...]:
    """Check and return the numbers of rows, which are used by turns."""
    sizes: tuple[int, ...] = each(_ROWS)(name, value if isinstance(value, Iterable) else [value])
    if not sizes:
        raise InvalidArgumentError(f"`{name}` is empty", hint="pass a number, or several to be used by turns")
    return sizes


class UnknownLengthError(FailedPreconditionError, TypeError):
    """`len()` of a dataset that never ends, or whose length is unknown until it is read."""


class Dataset:
    """A pipeline: a source of elements, and operations on them. Immutable; each method returns a new dataset.

    Elements are NumPy: arrays are read-only, Python numbers become NumPy scalars, `str` and `bytes` stay, and so do the
    tuples, dicts, lists and named tuples around them. Each epoch runs the pipeline again.

    Args:
        operation: The last operation of the tree. Users start with a source such as `range` or `from_tensor_slices`.

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

    def __reduce__(self) -> tuple[Any, ...]:
        # A dataset that a user's function captures is pickled as its pipeline, without the number of epochs read.
        return Dataset, (self.operation,)

    def __dsnb_fingerprint__(self) -> Any:
        # A dataset is identified by its pipeline.
        return self.operation

    if not TYPE_CHECKING:  # for a type checker, it would make every name an attribute

        def __getattr__(self, name: str) -> Any:
            advice = _TF_DATA_NAMES.get(name)
            hint = f"; {advice}" if advice else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    # ---- sources

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
    @checked(seed=seed)
    def random(seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Dataset:
        """Draw int64 numbers from 0 to 2**32 - 1, without end (as in tf.data).

        In a job that shares splits, use `Dataset.range(n).random_map(f)` instead.

        Args:
            seed: With a seed, the numbers are the same in every run.
            rerandomize_each_iteration: Whether each epoch draws anew although there is a seed; None means False.
                Without a seed each epoch draws anew.

        Example:
            >>> list(Dataset.random(seed=4).take(3)) == list(Dataset.random(seed=4).take(3))
            True
        """
        return Dataset(RandomNumbers(seed=seed, rerandomize=rerandomize_each_iteration is True))

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
        """Make a dataset of what a function yields; it is called once for each epoch (as in tf.data).

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
    @checked(dataset=anything, seed=seed)
    def from_random_access(
        dataset: Any, *, shuffle: bool = False, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset:
        """Make a dataset of `dataset[0]`, `dataset[1]`, and so on: of a torch `Dataset`, a Hugging Face one, a list.

        In a job that shares splits, each index goes to exactly one worker. If the object has `__getitems__`, a run of
        indices is fetched with one call. torch tensors, PIL images and lists of numbers become arrays. An error of an
        item is raised in its place. A class that a cell defines, and arrays inside of the object, reach all workers.

        Args:
            dataset: An object with `__len__` and `__getitem__`. Do not change it while it is in use.
            shuffle: Whether each epoch has a random order of all items. It takes no memory and no waiting, unlike
                `Dataset.shuffle`, because each index is computed.
            seed: With a seed, epoch k has the same order in every run. Without one, workers that share splits use a
                fixed one.
            reshuffle_each_iteration: False gives the same order in all epochs; without a seed that is one fixed order.

        Raises:
            InvalidArgumentError: the object has no items by number, no length, or an impossible one. While reading: its
                length has changed.

        Example:
            >>> class Squares:
            ...     def __len__(self):
            ...         return 4
            ...     def __getitem__(self, index):
            ...         return index * index
            >>> [int(x) for x in Dataset.from_random_access(Squares())]
            [0, 1, 4, 9]
        """
        return Dataset(random_access(dataset, shuffle=shuffle, seed=seed, reshuffle=reshuffle_each_iteration))

    @staticmethod
    @checked(file_pattern=paths, seed=seed)
    def list_files(
        file_pattern: Pattern | Sequence[Pattern], shuffle: bool | None = None, seed: int | None = None
    ) -> Dataset:
        """Make a dataset of the paths or URLs that match a pattern, as `str` (as in tf.data).

        Patterns are expanded now, and the paths are absolute, so that all workers read the same files. In a job that
        shares splits, each file goes to exactly one task.

        Args:
            file_pattern: One or several patterns with `*`, `?`, `[...]` and `**`; paths, or URLs that fsspec supports
                (`s3://bucket/train/*.png`).
            shuffle: Whether each epoch has a new random order; None means True. Otherwise the paths are sorted.
            seed: With a seed, epoch k has the same order in every run.

        Raises:
            NotFoundError: no file matches.
            InvalidArgumentError: a URL holds a password.
            FailedPreconditionError: a package that a URL needs is not installed.
            UnavailableError: the store of a URL cannot be reached.

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

    # ---- several datasets

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
        inputs = (choice, *operations_of_one_spec([one.operation for one in datasets]))
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
            rerandomize_each_iteration: Whether each epoch has its own order although there is a seed; None means False.
                Without a seed each epoch has its own order.

        Raises:
            InvalidArgumentError: there is no dataset, known element specs are not compatible, or the weights are
                negative, all zero, or not one for each dataset.

        Example:
            >>> ds = Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(10, 13)], seed=1)
            >>> sorted(int(x) for x in ds)
            [0, 1, 2, 10, 11, 12]
        """
        sources = operations_of_one_spec([one.operation for one in datasets])
        drawn = weights_or_equal(weights, len(sources))
        operation = SampleFromDatasets(
            inputs=tuple(source for source, share in zip(sources, drawn, strict=True) if share),
            weights=tuple(share for share in drawn if share),
            seed=seed,
            stop_on_empty=stop_on_empty_dataset,
            rerandomize=rerandomize_each_iteration is True,
        )
        return Dataset(operation)

    @checked(dataset=dataset)
    def concatenate(self, dataset: Dataset) -> Dataset:
        """Append another dataset to this one (as in tf.data); sizes of dimensions may differ.

        Args:
            dataset: The dataset whose elements follow.

        Raises:
            InvalidArgumentError: both element specs are known and not compatible.

        Example:
            >>> [int(x) for x in Dataset.range(2).concatenate(Dataset.range(7, 9))]
            [0, 1, 7, 8]
        """
        second = dataset.operation
        mine, its = self.operation.element_spec, second.element_spec
        if mine is not None and its is not None and not are_compatible(mine, its):
            raise InvalidArgumentError(
                f"`dataset` has elements of the spec {its}, which cannot follow elements of the spec {mine}",
                hint="give both the same structure, dtypes and numbers of dimensions with `map`",
            )
        return Dataset(Concatenate(inputs=(self.operation, second)))

    # ---- functions of elements

    @checked(map_func=function, num_parallel_calls=parallel_calls)
    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Call a function for each element; its results are the elements of the new dataset.

        A tuple is unpacked into arguments; a dict, a named tuple or anything else is passed as one argument (as in
        tf.data). An error of the function is raised in place of the element; the following `next` continues with the
        next element.

        Args:
            map_func: Takes NumPy arrays and scalars, `str` and `bytes`; returns arrays, numbers or text, nested in
                tuples, dicts or lists. It may return the same buffer repeatedly: values that it can still write to are
                copied.
            num_parallel_calls: How many threads call it; None for the reading thread, `AUTOTUNE` to measure whether
                threads help (they do not help short functions that hold the GIL).
            deterministic: False yields results of several threads in the order in which they are ready. None follows
                `with_options`, else True.

        Raises:
            InvalidArgumentError: for something that cannot be called, or an invalid number of calls.

        Example:
            >>> [int(x) for x in Dataset.range(4).map(lambda x: x * x)]
            [0, 1, 4, 9]
        """
        operation = Map(
            inputs=(self.operation,),
            function=called_with_elements("map_func", map_func, self.operation),
            calls=num_parallel_calls,
            deterministic=deterministic,
        )
        return Dataset(operation)

    @checked(map_func=function_of("an element", "a numpy.random.Generator"), seed=seed)
    def random_map(self, map_func: Callable[[Any, Any], Any], seed: int | None = None) -> Dataset:
        """Call a function for each element with a random generator whose numbers follow from the element.

        For augmentation that can be repeated: the generator depends on the seed, the epoch and the number of the
        element in its source. So an element draws the same numbers on any worker, when it is produced again after a
        worker died, and after resuming. Behind an operation that changes the number of elements (`filter`, `shuffle`
        and the like), workers that share splits number the elements of their own part.

        Args:
            map_func: Takes an element (a tuple is not unpacked) and a `numpy.random.Generator`, which it must not keep;
                returns what a function of `map` may return.
            seed: With a seed, epoch k draws the same in every run. Without one, workers that share splits use a fixed
                one.

        Raises:
            InvalidArgumentError: for something that cannot be called with two arguments.

        Example:
            >>> noisy = Dataset.range(3).random_map(lambda x, rng: x + rng.random(), seed=1)
            >>> first, second = list(noisy), list(Dataset.range(3).random_map(lambda x, rng: x + rng.random(), seed=1))
            >>> first == second
            True
        """
        return Dataset(RandomMap(inputs=(self.operation,), function=map_func, seed=seed))

    @checked(predicate=function)
    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Keep the elements for which a function returns True; called with arguments as in `map` (as in tf.data).

        Args:
            predicate: Takes an element as in `map`; returns one truth value.

        Raises:
            InvalidArgumentError: for something that cannot be called.

        Example:
            >>> [int(x) for x in Dataset.range(6).filter(lambda x: x % 2 == 0)]
            [0, 2, 4]
        """
        called_with_elements("predicate", predicate, self.operation)
        return Dataset(Filter(inputs=(self.operation,), predicate=predicate))

    @checked(budget=optional(integer(0)))
    def ignore_errors(self, *, budget: int | None = None) -> Dataset:
        """Drop the elements that failed, instead of raising their errors (as in tf.data).

        At the end of an epoch, or when reading stops before it, a `DataLossWarning` has the number of dropped elements
        and the first errors. Put it after `distribute`: there too, errors come in the place of their elements.

        Args:
            budget: How many elements may be dropped in an epoch; later errors are raised. None for any number.

        Raises:
            InvalidArgumentError: the budget is negative. By `distribute`: FailedPreconditionError, if it comes before.

        Example:
            >>> import warnings
            >>> halves = Dataset.range(3).map(lambda x: 6 // int(x)).ignore_errors()
            >>> with warnings.catch_warnings():
            ...     warnings.simplefilter("ignore")  # the example shows no warning
            ...     [int(x) for x in halves]
            [6, 3]
        """
        return Dataset(IgnoreErrors(inputs=(self.operation,), budget=budget))

    @checked(predicate=function)
    def take_while(self, predicate: Callable[..., Any]) -> Dataset:
        """Keep the elements before the first for which a function returns False; called as in `map` (as in tf.data).

        Args:
            predicate: Takes an element as in `map`; returns one truth value.

        Raises:
            InvalidArgumentError: for something that cannot be called.

        Example:
            >>> [int(x) for x in Dataset.range(10).take_while(lambda x: x * x < 10)]
            [0, 1, 2, 3]
        """
        called_with_elements("predicate", predicate, self.operation)
        return Dataset(TakeWhile(inputs=(self.operation,), predicate=predicate))

    @checked(initial_state=anything, scan_func=function_of("the state", "an element"))
    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], tuple[Any, Any]]) -> Dataset:
        """Call a function for each element, with a state that passes from one call to the next (as in tf.data).

        An error of the function is raised in place of the element; the state stays as it was, and the following `next`
        continues with the next element.

        Args:
            initial_state: The state for the first call of each epoch; read as in `from_tensors`, arrays are read-only.
            scan_func: Takes the state and an element (a tuple is not unpacked); returns the next state, nested like the
                first one, and the element of the new dataset.

        Raises:
            InvalidArgumentError: for something that cannot be called, or a state that NumPy cannot read.

        Example:
            >>> sums = Dataset.range(5).scan(0, lambda total, x: (total + x, total + x))
            >>> [int(x) for x in sums]
            [0, 1, 3, 6, 10]
        """
        structure, leaves = flatten_input(initial_state, "initial_state")
        operation = Scan(
            inputs=(self.operation,),
            structure=structure,
            leaves=tuple(tensor_of(leaf, "initial_state") for leaf in leaves),
            function=scan_func,
        )
        return Dataset(operation)

    @checked(
        map_func=function,
        cycle_length=cycle_length,
        block_length=optional(integer(1)),
        num_parallel_calls=parallel_calls,
    )
    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Make a dataset of each element, and take `block_length` elements from `cycle_length` of them by turns.

        The order is tf.data's: when a dataset ends, its place in the cycle stays empty and gets the next dataset at its
        next turn.

        Args:
            map_func: Takes an element as in `map`; returns a Dataset.
            cycle_length: How many datasets are read by turns; None and `AUTOTUNE` mean 8, on every machine.
            block_length: How many elements are taken at each turn; None means 1.
            num_parallel_calls: How many of the datasets are read ahead, each on its own thread; `AUTOTUNE` for all of
                them.
            deterministic: False skips a dataset that has no element ready. None follows `with_options`, else True.

        Raises:
            InvalidArgumentError: a length is below 1. While reading: the function returned something else than a
                Dataset.

        Example:
            >>> ds = Dataset.range(1, 4).interleave(lambda x: Dataset.from_tensors(x).repeat(2), cycle_length=2)
            >>> [int(x) for x in ds]
            [1, 2, 1, 2, 3, 3]
        """
        operation = Interleave(
            inputs=(self.operation,),
            function=called_with_elements("map_func", map_func, self.operation),
            cycle=DEFAULT_CYCLE if cycle_length in (None, AUTOTUNE) else cycle_length,
            block=1 if block_length is None else block_length,
            calls=num_parallel_calls,
            deterministic=deterministic,
        )
        return Dataset(operation)

    @checked(map_func=function)
    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """Make a dataset of each element, and read these datasets one after another (as in tf.data).

        Args:
            map_func: Takes an element as in `map`; returns a Dataset.

        Raises:
            InvalidArgumentError: while reading, if the function returns something that is not a Dataset.

        Example:
            >>> [int(x) for x in Dataset.range(4).flat_map(Dataset.range)]
            [0, 0, 1, 0, 1, 2]
        """
        called_with_elements("map_func", map_func, self.operation)
        return Dataset(FlatMap(inputs=(self.operation,), function=map_func))

    # ---- order and selection

    @checked(buffer_size=integer(1), seed=seed)
    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool | None = True
    ) -> Dataset:
        """Return elements in random order, drawn from a buffer of the next `buffer_size` elements (as in tf.data).

        For a perfect shuffle the buffer must hold the whole dataset. The order for a seed does not depend on timing.

        Args:
            buffer_size: 1 or more elements; 1 keeps the order.
            seed: With a seed, epoch k has the same order in every run.
            reshuffle_each_iteration: False gives the same order in all epochs; without a seed that is one fixed order.

        Raises:
            InvalidArgumentError: the buffer size is below 1.

        Example:
            >>> sorted(int(x) for x in Dataset.range(5).shuffle(3, seed=1))
            [0, 1, 2, 3, 4]
        """
        operation = Shuffle(
            inputs=(self.operation,),
            size=buffer_size,
            seed=seed,
            reshuffle=reshuffle_each_iteration is not False,
        )
        return Dataset(operation)

    @checked(count=optional(integer(-1, hint="pass a count of 0 or more, or None for ever")))
    def repeat(self, count: int | None = None) -> Dataset:
        """Repeat the dataset `count` times; forever with None or -1 (as in tf.data).

        An endless repeat of a dataset that turns out to be empty ends. Each repetition runs the pipeline again.

        Args:
            count: 0 or more; None or -1 for an endless dataset.

        Raises:
            InvalidArgumentError: the count is below -1.

        Example:
            >>> [int(x) for x in Dataset.range(2).repeat(3)]
            [0, 1, 0, 1, 0, 1]
        """
        return Dataset(Repeat(inputs=(self.operation,), count=None if count == -1 else count))

    @checked(count=count_or_all)
    def take(self, count: int) -> Dataset:
        """Keep the first `count` elements, all of them with -1 (as in tf.data); later elements are not computed.

        Args:
            count: 0 or more, or -1.

        Raises:
            InvalidArgumentError: the count is below -1.

        Example:
            >>> [int(x) for x in Dataset.range(10).take(3)]
            [0, 1, 2]
        """
        return Dataset(Take(inputs=(self.operation,), count=count))

    @checked(count=count_or_all)
    def skip(self, count: int) -> Dataset:
        """Drop the first `count` elements, all of them with -1 (as in tf.data).

        Args:
            count: 0 or more, or -1.

        Raises:
            InvalidArgumentError: the count is below -1.

        Example:
            >>> [int(x) for x in Dataset.range(5).skip(3)]
            [3, 4]
        """
        return Dataset(Skip(inputs=(self.operation,), count=count))

    @checked(num_shards=integer(), index=integer())
    def shard(self, num_shards: int, index: int) -> Dataset:
        """Keep the elements at `index`, `index + num_shards`, and so on (as in tf.data).

        All shards together contain each element once, provided that each of them sees the elements in the same order:
        shard before an unseeded `shuffle`.

        Args:
            num_shards: 1 or more; or `dsnb.SHARD_HINT`, which the workers of a job in the mode `ShardingPolicy.HINT`
                replace by their number and index.
            index: 0 to `num_shards - 1`; ignored with `SHARD_HINT`.

        Raises:
            InvalidArgumentError: the numbers can never be valid. While reading: FailedPreconditionError, if the hint
                was not replaced.

        Example:
            >>> [int(x) for x in Dataset.range(10).shard(4, 1)]
            [1, 5, 9]
        """
        count, position_in_cycle = checked_shard(num_shards, index)
        return Dataset(Shard(inputs=(self.operation,), count=count, index=position_in_cycle))

    @checked()
    def unique(self) -> Dataset:
        """Drop elements that occurred before (as in tf.data, but for elements of every kind).

        Memory use grows with the number of distinct elements: short ones are kept, others as a 16-byte digest. 0.0 and
        -0.0 count as equal, and so do all NaNs.

        Example:
            >>> [int(x) for x in Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique()]
            [1, 37, 2]
        """
        return Dataset(Unique(inputs=(self.operation,)))

    @checked(start=integer(-(1 << 62), 1 << 62))
    def enumerate(self, start: int = 0) -> Dataset:
        """Pair each element with its number, an int64 that counts from `start` (as in tf.data).

        Args:
            start: The number of the first element.

        Example:
            >>> [(int(i), x) for i, x in Dataset.from_tensor_slices(["a", "b"]).enumerate(5)]
            [(5, 'a'), (6, 'b')]
        """
        return Dataset(Enumerate(inputs=(self.operation,), start=start))

    # ---- batches, windows and buckets

    @checked(batch_size=_ROWS, num_parallel_calls=parallel_calls)
    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Lay out `batch_size` consecutive elements as one, each leaf with one more dimension (as in tf.data).

        `str` becomes a NumPy array of text ("U"), `bytes` an array of bytes ("S"). A value that ends in a NUL is
        refused, because such an array would drop the NUL.

        Args:
            batch_size: 1 or more.
            drop_remainder: Drop a smaller last batch; then the size of the first dimension is known.
            num_parallel_calls: Accepted for compatibility with tf.data and ignored: a batch is one copy, which threads
                do not speed up. To make batches while the reader works, use `prefetch` afterwards.
            deterministic: Accepted for compatibility with tf.data and ignored.

        Raises:
            InvalidArgumentError: the batch size is below 1. While reading: an element differs from the first of its
                batch in shape, dtype or structure; the element is dropped and the error raised in its place.

        Example:
            >>> list(Dataset.range(5).batch(2))
            [array([0, 1]), array([2, 3]), array([4])]
        """
        return Dataset(Batch(inputs=(self.operation,), size=batch_size, drop_remainder=drop_remainder))

    @checked(batch_size=_ROWS, padded_shapes=anything, padding_values=anything)
    def padded_batch(
        self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: bool = False
    ) -> Dataset:
        """Lay out `batch_size` consecutive elements as one, their leaves padded to one size (as in tf.data).

        Args:
            batch_size: 1 or more.
            padded_shapes: Nested like the elements: the sizes of each leaf, as in `[None, 28]`, where None (or -1)
                means the largest size in the batch. None alone means that for all dimensions.
            padding_values: Nested like the elements: the fill value of each leaf; or one value for all leaves. None for
                zeros, and "" for text.
            drop_remainder: Drop a smaller last batch.

        Raises:
            InvalidArgumentError: the batch size is below 1, or shapes or values do not fit the elements; raised here if
                the element spec is known, else while reading, in place of the element. Also while reading, for an
                element larger than `padded_shapes`.

        Example:
            >>> import numpy as np
            >>> rows = Dataset.range(1, 4).map(lambda n: np.full(n, n))
            >>> [batch.tolist() for batch in rows.padded_batch(2)]
            [[[1, 0], [2, 2]], [[3, 3, 3]]]
        """
        operation = PaddedBatch(
            inputs=(self.operation,),
            size=batch_size,
            drop_remainder=drop_remainder,
            padding=Padding(shapes=padded_shapes, values=padding_values),
        )
        operation.check()
        return Dataset(operation)

    @checked()
    def unbatch(self) -> Dataset:
        """Cut each element into elements along the first dimension of its leaves (as in tf.data).

        Raises:
            InvalidArgumentError: a leaf has no dimensions; raised here if the element spec is known, else while
                reading. Also while reading, for leaves of different lengths.

        Example:
            >>> [int(x) for x in Dataset.range(5).batch(2).unbatch()]
            [0, 1, 2, 3, 4]
        """
        self._check_rows("unbatch")
        return Dataset(Unbatch(inputs=(self.operation,)))

    @checked(batch_size=_batch_sizes)
    def rebatch(self, batch_size: int | Iterable[int], drop_remainder: bool = False) -> Dataset:
        """Cut and join batches to another size, like `unbatch().batch(n)` but with few copies (as in tf.data).

        Args:
            batch_size: 1 or more rows; several numbers are used by turns.
            drop_remainder: Drop a smaller last batch.

        Raises:
            InvalidArgumentError: a size is below 1, or a leaf has no dimensions; the latter is raised here if the
                element spec is known, else while reading. Also while reading, for batches whose rows differ from those
                of the first.

        Example:
            >>> list(Dataset.range(8).batch(4).rebatch([2, 1]))
            [array([0, 1]), array([2]), array([3, 4]), array([5]), array([6, 7])]
        """
        assert isinstance(batch_size, tuple)  # by its rule
        self._check_rows("rebatch")
        return Dataset(Rebatch(inputs=(self.operation,), sizes=batch_size, drop_remainder=drop_remainder))

    @checked(size=integer(1), shift=optional(integer(1)), stride=integer(1))
    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Dataset:
        """Make elements that are datasets of `size` consecutive elements (as in tf.data).

        For tuples and dicts, each leaf is a dataset of its own, nested like the elements. A window must be read in the
        pipeline that makes it: use `flat_map` or `interleave` afterwards.

        Args:
            size: Elements of a window, 1 or more; the last windows may have fewer.
            shift: How many elements after this window's start the next one starts; None means `size`, so that windows
                do not overlap.
            stride: Distance between the elements of a window.
            drop_remainder: Drop windows with fewer than `size` elements.

        Raises:
            InvalidArgumentError: a number is below 1.

        Example:
            >>> windows = Dataset.range(7).window(3, shift=2, stride=2, drop_remainder=True)
            >>> list(windows.flat_map(lambda window: window.batch(3)))
            [array([0, 2, 4]), array([2, 4, 6])]
        """
        operation = Window(
            inputs=(self.operation,),
            make_dataset=Dataset,
            size=size,
            shift=size if shift is None else shift,
            stride=stride,
            drop_remainder=drop_remainder,
        )
        return Dataset(operation)

    @checked(
        key_func=function,
        reduce_func=function_of("a key", "a Dataset"),
        window_size=optional(_ROWS),
        window_size_func=optional(function_of("a key")),
    )
    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Dataset], Dataset],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> Dataset:
        """Gather elements with the same key into windows, and read the datasets that a function makes of them in turn.

        A window is passed on when it is full; at the end, incomplete windows follow in the order of their keys (as in
        tf.data).

        Args:
            key_func: Takes an element as in `map`; returns its key, a whole number.
            reduce_func: Takes a key and a Dataset of up to `window_size` elements with that key; returns a Dataset.
            window_size: 1 or more elements.
            window_size_func: Instead of `window_size`: takes a key and returns the size of its windows.

        Raises:
            InvalidArgumentError: the size is below 1, or both or none of the two are given. While reading, in place of
                an element: its key is not a whole number.

        Example:
            >>> ds = Dataset.range(10).group_by_window(lambda x: x % 2, lambda key, window: window.batch(3), 3)
            >>> list(ds)
            [array([0, 2, 4]), array([1, 3, 5]), array([6, 8]), array([7, 9])]
        """
        size = window_size if window_size is not None else window_size_func
        if size is None or (window_size is not None and window_size_func is not None):
            raise InvalidArgumentError(
                "Must pass either `window_size` or `window_size_func`, but not both",
                hint="window_size=10, or a function that gives the size for a key",
            )
        operation = GroupByWindow(
            inputs=(self.operation,),
            make_dataset=Dataset,
            key=called_with_elements("key_func", key_func, self.operation),
            reduce=reduce_func,
            window_size=size,
        )
        return Dataset(operation)

    @checked(
        element_length_func=function,
        bucket_boundaries=each(_ROWS),
        bucket_batch_sizes=each(_ROWS),
        padded_shapes=anything,
        padding_values=anything,
    )
    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Iterable[int],
        bucket_batch_sizes: Iterable[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Batch elements of similar length, so that little padding is needed (as in tf.data).

        Args:
            element_length_func: Takes an element as in `map`; returns its length, a whole number.
            bucket_boundaries: Ascending; bucket k contains lengths from boundary k - 1 to boundary k, exclusive.
            bucket_batch_sizes: One for each bucket: one more than there are boundaries.
            padded_shapes: As in `padded_batch`.
            padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: Pad to the largest length of the bucket instead of the batch; elements beyond the
                last boundary are refused.
            no_padding: Batch like `batch`, without padding.
            drop_remainder: Drop smaller last batches.

        Raises:
            InvalidArgumentError: the boundaries are not ascending, or the number of batch sizes differs from that of
                buckets.

        Example:
            >>> import numpy as np
            >>> rows = Dataset.from_tensor_slices([1, 5, 2, 4]).map(lambda n: np.full(n, n))
            >>> [batch.tolist() for batch in rows.bucket_by_sequence_length(len, [3], [2, 2])]
            [[[1, 0], [2, 2]], [[5, 5, 5, 5, 5], [4, 4, 4, 4, 0]]]
        """
        buckets = Buckets(
            length=called_with_elements("element_length_func", element_length_func, self.operation),
            boundaries=tuple(bucket_boundaries),
            sizes=tuple(bucket_batch_sizes),
            padding=None if no_padding else Padding(shapes=padded_shapes, values=padding_values),
            pad_to_boundary=pad_to_bucket_boundary and not no_padding,
            drop_remainder=drop_remainder,
        )
        buckets.check()
        operation = BucketBySequenceLength(
            inputs=(self.operation,),
            make_dataset=Dataset,
            key=buckets.bucket_of,
            reduce=buckets.batch,
            window_size=buckets.size,
            buckets=buckets,
        )
        return Dataset(operation)

    def _check_rows(self, name: str) -> None:
        spec = self.operation.element_spec
        if spec is not None and any(not leaf.shape for leaf in flatten(spec)):
            raise InvalidArgumentError(
                f"{name}: elements of the spec {spec} have a leaf without dimensions: there are no rows to cut",
                hint=f"leave `{name}` out, or `batch` first",
            )

    # ---- how the pipeline runs

    @checked(buffer_size=integer(AUTOTUNE, hint="pass a number of elements, or dsnb.AUTOTUNE"))
    def prefetch(self, buffer_size: int) -> Dataset:
        """Prepare up to `buffer_size` elements on a thread while the reader works (as in tf.data).

        Args:
            buffer_size: A number of elements; 0 for no look-ahead; `AUTOTUNE` to begin with two and double whenever the
                reader had to wait, up to 64 MiB.

        Raises:
            InvalidArgumentError: the size is negative and not AUTOTUNE.

        Example:
            >>> [int(x) for x in Dataset.range(3).prefetch(2)]
            [0, 1, 2]
        """
        return Dataset(Prefetch(inputs=(self.operation,), size=buffer_size))

    @checked(
        where=optional(parse_location),
        filename=optional(parse_location),
        limit_bytes=optional(integer(0)),
        expire_seconds=optional(seconds),
        chunk_bytes=nbytes,
        lease_seconds=seconds,
    )
    def cache(
        self,
        where: str | os.PathLike[str] | None = None,
        *,
        filename: str | os.PathLike[str] | None = None,
        limit_bytes: int | None = None,
        expire_seconds: float | None = None,
        content: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        lease_seconds: float = LEASE_S,
    ) -> Dataset:
        """Record the elements; later epochs and concurrent runs read them back (as in tf.data, and more).

        With a directory, any number of runs share one recording: one of them writes it, the others read what is
        written, and take over if the writer stops. The recording is identified by the pipeline itself, including the
        code of its functions and the files that it names, so a changed pipeline is recorded again. A run that stops
        early leaves its part, and the next run continues from there.

        A `shuffle` before `cache` is recorded in the order of one epoch and stays that way: shuffle after `cache`
        instead. If it has no seed, a `CacheWarning` says so.

        Args:
            where: A directory; `redis://host:port/db`, for runs on hosts without a shared disk; any other address that
                fsspec supports, to be written by one run at a time; None or "" for the memory of this process.
            filename: tf.data's name of `where`; it is a directory here too.
            limit_bytes: Maximum size in memory, or of all recordings in the directory; None for no limit. To stay
                within it, recordings that are not being read are removed, the least recently used first. Elements
                beyond it are produced in each epoch.
            expire_seconds: How long a recording that is not read is kept in a directory or on a Redis server; None for
                as long as possible. A directory is checked when a recording in it is opened.
            content: Whether to detect changed files by content, which must be read for it, instead of size and
                modification time.
            chunk_bytes: How much is written at once; data is written at least once a second.
            lease_seconds: After this time without a sign of life from the writer, another run takes over.

        Raises:
            InvalidArgumentError: for an invalid location; for both `where` and `filename`; for `expire_seconds` with
                memory, or with a store that removes nothing by itself.
            FailedPreconditionError: the pipeline refers to something that cannot be compared, such as an open file, so
                that changes would go unnoticed; the message names it. Also for a directory of a newer version of dsnb.

        Example:
            >>> calls = []
            >>> ds = Dataset.range(3).map(lambda x: calls.append(1) or x * x).cache()
            >>> [int(x) for x in ds], [int(x) for x in ds], len(calls)
            ([0, 1, 4], [0, 1, 4], 3)
        """
        if where is not None and filename is not None:
            raise InvalidArgumentError(
                "`cache` was given both `where` and `filename`",
                hint="pass one: they are two names of the same argument",
            )
        location: Any = where if filename is None else filename
        _check_expiry(location, expire_seconds)
        operation = Cache(
            inputs=(self.operation,),
            where=location,
            memory=RecordingMemory(limit_bytes, keep_between_passes=location is None),
            limit=limit_bytes,
            expire_s=expire_seconds,
            content=content,
            chunk_bytes=chunk_bytes,
            lease_s=lease_seconds,
        )
        operation.check()
        return Dataset(operation)

    @checked(options=options_rule)
    def with_options(self, options: Options) -> Dataset:
        """Set how the whole pipeline runs, and what its elements look like (as in tf.data).

        Args:
            options: Later settings override earlier ones; a setting of None changes nothing.

        Raises:
            InvalidArgumentError: for anything that is not a `dsnb.Options`.

        Example:
            >>> (array,) = Dataset.from_tensors([1, 2]).with_options(Options(writable=True))
            >>> array += 1
            >>> array
            array([2, 3])
        """
        return Dataset(WithOptions(inputs=(self.operation,), **vars(options)))

    @checked()
    def options(self) -> Options:
        """Return the settings of this pipeline (as in tf.data).

        Example:
            >>> Dataset.range(3).with_options(Options(deterministic=False)).options()
            Options(deterministic=False, writable=None, receipts=None)
        """
        return options_of(self.operation)

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

    # ---- what it is, and reading it

    @property
    def element_spec(self) -> Any:
        """A `TensorSpec` for each leaf of an element, or None if only running the pipeline would show it.

        Never runs anything. After `map`, `flat_map` and the like it is None at first; once an element was read or shown
        by `peek`, it is the spec of that element, although sizes of others may differ.
        """
        spec = self.operation.element_spec
        return seen_spec(self.operation) if spec is None else spec

    @checked(initial_state=anything, reduce_func=function_of("the state", "an element"))
    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Read one epoch and combine its elements into one value (as in tf.data).

        Args:
            initial_state: The state for the first call; read as in `from_tensors`.
            reduce_func: Takes the state and an element (a tuple is not unpacked); returns the next state, nested like
                the first one.

        Returns:
            The last state, as NumPy; the initial one if the dataset is empty.

        Raises:
            InvalidArgumentError: for something that cannot be called, a state that NumPy cannot read, or one that is
                nested otherwise than the first. The error of an element, or of a call, is raised as it is.
            FailedPreconditionError: the dataset never ends.

        Example:
            >>> int(Dataset.range(5).reduce(0, lambda total, x: total + x))
            10
        """
        return reduced(self, initial_state, reduce_func)

    @checked(path=path, file_bytes=integer(1, hint="pass a number of bytes, 1 or more"))
    def save(self, path: str | os.PathLike[str], file_bytes: int = 128 << 20) -> None:
        """Read one epoch and write its elements to a new folder, from which `Dataset.load` reads them (as in tf.data).

        The folder gets its name once it is complete: a save that fails, or is interrupted, leaves nothing. To have
        workers make the elements, put `distribute` in front of it.

        Args:
            path: The folder; it must not exist.
            file_bytes: From which size on a new file begins. Files are the splits of a DYNAMIC job that reads them.

        Raises:
            AlreadyExistsError: the path exists.
            InvalidArgumentError: the dataset never ends, or the path is too long. The error of an element is raised as
                it is.
            ResourceExhaustedError: the disk is full.
            PermissionDeniedError: this user may not write there.
            UnimplementedError: the path is a URL.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Dataset.range(1000).map(lambda x: x * x).save(f"{folder}/squares")
            ...     squares = Dataset.load(f"{folder}/squares")
            ...     len(squares), int(next(iter(squares.skip(9))))
            (1000, 81)
        """
        save_dataset(self, str(path), file_bytes)

    @staticmethod
    @checked(path=path, element_spec=optional(spec_rule))
    def load(path: str | os.PathLike[str], element_spec: Any = None) -> Dataset:
        """Return the dataset that `save` wrote (as in tf.data), in the order in which it was saved.

        Args:
            path: The folder, or the URL of a copy of it.
            element_spec: Compared with that of the saved elements; None to use that.

        Raises:
            NotFoundError: there is no complete saved dataset.
            InvalidArgumentError: the saved elements have another spec, or the URL holds a password.
            FailedPreconditionError: another version of dsnb saved it, or it cannot be read. While reading:
                DataLossError in place of the rest of a damaged file; FileNotFoundError in place of a missing one.

        Example:
            >>> Dataset.load("squares")  # doctest: +SKIP
            Dataset(saved(1), element_spec=TensorSpec((), int64))
        """
        where = check_file_url("path", str(path)) if is_url(str(path)) else str(path)
        return Dataset(saved_files(absolute(where), element_spec))

    @checked()
    def get_single_element(self) -> Any:
        """Return the only element (as in tf.data).

        Raises:
            InvalidArgumentError: the dataset is empty or has more than one element. The error of an element is raised
                as it is.

        Example:
            >>> int(Dataset.range(5).skip(4).get_single_element())
            4
        """
        return single_element(self)

    @checked()
    def peek(self) -> PeekedElement:
        """Return the first element as a table of its leaves: shapes, dtypes, values, in a notebook also thumbnails.

        It is produced in this process, and does not count as a read: the next loop begins the same epoch as without it.
        `peek().element` is the element. Afterwards `element_spec` is known.

        Raises:
            FailedPreconditionError: the dataset is empty, or it is read from a service, whose elements belong to
                trainers. The error of the first element is raised as it is.

        Example:
            >>> Dataset.from_tensor_slices({"x": [[1, 2], [3, 4]], "y": ["a", "b"]}).peek()
            leaf  shape  dtype  values
            x     (2,)   int64  [1, 2]
            y     ()     str    'a'
        """
        return PeekedElement(first_element(self))

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
                f"{self._chain()} has {cardinality:,} elements, more than len() can return", hint="use cardinality()"
            )
        if cardinality == INFINITE_CARDINALITY:
            raise UnknownLengthError("the dataset never ends", hint="`take(n)` first")
        raise UnknownLengthError(
            f"the length of this dataset is not known before it is read: {self._chain()}",
            hint="count while reading; `cardinality()` tells without an error",
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

    @checked(device=anything, prefetch=integer(0), pin_memory=_pinning)
    def to_torch(
        self,
        device: Any = None,
        prefetch: int = 2,
        pin_memory: bool | Literal["auto"] = "auto",
        writable: bool = False,
    ) -> Any:
        """Return a `torch.utils.data.DataLoader` over the elements, which must be batches already.

        PyTorch, Lightning, Accelerate and Keras take it as it is. The loader has no workers of its own
        (`num_workers=0`), since the pipeline or the service produces ahead, and does not batch (`batch_size=None`). Its
        length is that of the dataset. `state_dict()` and `load_state_dict()` work as those of torchdata's
        `StatefulDataLoader`: a state taken at step k continues at step k + 1, also in another process. For that, the
        loader keeps the iterator of the last loop until the next one begins.

        Args:
            device: As in `iter_torch`.
            prefetch: As in `iter_torch`.
            pin_memory: As in `iter_torch`.
            writable: As in `iter_torch`.

        Raises:
            FailedPreconditionError: torch, or what the arguments ask for, is not available here.
            InvalidArgumentError: torch does not know the device.

        Example:
            >>> loader = Dataset.range(6).batch(2).to_torch()  # doctest: +SKIP
            >>> [batch.tolist() for batch in loader], len(loader)  # doctest: +SKIP
            ([[0, 1], [2, 3], [4, 5]], 3)
        """
        epoch = partial(self.iter_torch, device, prefetch, pin_memory, writable)
        return make_loader(epoch, self.__len__, sized=0 <= self.operation.cardinality <= sys.maxsize)

    @checked(device=anything, prefetch=integer(0), pin_memory=_pinning)
    def iter_torch(
        self,
        device: Any = None,
        prefetch: int = 2,
        pin_memory: bool | Literal["auto"] = "auto",
        writable: bool = False,
    ) -> ElementIterator:
        """Start one epoch with torch tensors instead of arrays; the structure and text stay, numbers become 0-d.

        A tensor uses the memory of its array. It belongs to this reader alone, so operations in place reach no other
        reader, no recording and no source. The time that `next` spends on conversion and copying is counted, and
        `svc.explain()` reports it apart from the training loop.

        Args:
            device: A torch device, as in "cuda"; None for the processor.
            prefetch: How many elements a thread copies to the device ahead of the loop; without a device nothing is
                copied, and `Dataset.prefetch` is the way to read ahead.
            pin_memory: Whether to copy through page-locked memory; "auto" does so for CUDA devices. With True and no
                device, tensors are in page-locked memory, for a framework that copies them.
            writable: Whether to copy each array to ordinary memory first. Tensors may be written to in any case; large
                elements of a shared job are copy-on-write mappings, in which the first write to a page costs a fault.

        Raises:
            FailedPreconditionError: torch, or what the arguments ask for, is not available here.
            InvalidArgumentError: torch does not know the device; at `next`, an element has a leaf that torch has no
                type for, such as a date. The message has the line that converts it.

        Example:
            >>> for batch in Dataset.range(4).batch(2).iter_torch():  # doctest: +SKIP
            ...     print(batch.mul_(10))
            tensor([ 0, 10])
            tensor([20, 30])
        """
        return self._iterate(torch_placement(device, prefetch, pin_memory, writable=writable))

    @checked(sharding=anything, prefetch=integer(0))
    def iter_jax(self, sharding: Any = None, prefetch: int = 2) -> ElementIterator:
        """Start one epoch with JAX arrays instead of NumPy's; the structure and text stay, numbers become 0-d.

        JAX narrows 64-bit numbers to 32 bits unless `jax_enable_x64` is set.

        Args:
            sharding: A `jax.sharding.Sharding` of the global array, of which each process passes its part
                (`jax.make_array_from_process_local_data`); numbers without dimensions are the same everywhere. Or a
                device. None for JAX's default device.
            prefetch: How many elements a thread copies to the device ahead of the loop; none where JAX's device is the
                processor.

        Raises:
            FailedPreconditionError: JAX is not installed.
            InvalidArgumentError: `sharding` is neither; at `next`, an element has a leaf that JAX has no type for.

        Example:
            >>> for batch in Dataset.range(4).batch(2).iter_jax():  # doctest: +SKIP
            ...     print(batch * 10)
            [ 0 10]
            [20 30]
        """
        return self._iterate(jax_placement(sharding, prefetch))

    def _iterate(self, placement: Placement) -> ElementIterator:
        iteration = DatasetIteration(operation=self.operation, counter=self._iterations, placement=placement)
        return ElementIterator(writable=options_of(self.operation).writable is True, iteration=iteration)

    def __repr__(self) -> str:
        spec = self.element_spec
        known = "unknown until read" if spec is None else spec
        return f"{type(self).__name__}({self._chain()}, element_spec={known})"

    def _repr_html_(self) -> str:
        from dsnb.pipeline.dataset_html import dataset_html

        return dataset_html(self.operation)

    def _chain(self) -> str:
        return describe(self.operation)


def _check_expiry(location: str | None, seconds: float | None) -> None:
    if seconds is None:
        return
    if location is None:
        raise InvalidArgumentError(
            "`expire_seconds` was given for a recording in memory, which goes with the dataset",
            hint="leave it out, or give `cache` a directory",
        )
    if not supports_expiry(location):
        raise InvalidArgumentError(
            f"`expire_seconds` was given for {without_password(location)}, where dsnb cannot tell what is being read",
            hint="leave it out and let the store itself expire files, or use a directory or a Redis server",
        )

"""The methods of `Dataset` that derive one dataset from another.

Names, arguments and meaning are those that tf.data documents, so that users of tf.data change little more than imports.
Where dsnb differs, the docstring says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsnb.arguments import anything, checked, function, function_of, integer, optional
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.grouping import Grouping
from dsnb.pipeline.operations.concatenate import Concatenate
from dsnb.pipeline.operations.enumerate import Enumerate
from dsnb.pipeline.operations.filter import Filter
from dsnb.pipeline.operations.flat_map import FlatMap
from dsnb.pipeline.operations.interleave import DEFAULT_CYCLE, Interleave
from dsnb.pipeline.operations.map import Map
from dsnb.pipeline.operations.prefetch import Prefetch
from dsnb.pipeline.operations.repeat import Repeat
from dsnb.pipeline.operations.scan import Scan
from dsnb.pipeline.operations.shard import Shard, checked_shard
from dsnb.pipeline.operations.shuffle import Shuffle
from dsnb.pipeline.operations.skip import Skip
from dsnb.pipeline.operations.take import Take
from dsnb.pipeline.operations.take_while import TakeWhile
from dsnb.pipeline.operations.unique import Unique
from dsnb.pipeline.operations.with_options import Options, WithOptions, options_of, options_rule
from dsnb.pipeline.sources.arrays import flatten_input, tensor_of
from dsnb.pipeline.specs import are_compatible
from dsnb.pipeline.validate import (
    AUTOTUNE,
    called_with_elements,
    count_or_all,
    cycle_length,
    dataset,
    parallel_calls,
    seed,
)

if TYPE_CHECKING:
    from dsnb.pipeline.dataset import Dataset


class Transformations(Grouping):
    """Transformations of a dataset; each method returns a new dataset and leaves this one unchanged."""

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
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(4).map(lambda x: x * x)]
            [0, 1, 4, 9]
        """
        operation = Map(
            inputs=(self.operation,),
            function=called_with_elements("map_func", map_func, self.operation),
            calls=num_parallel_calls,
            deterministic=deterministic,
        )
        return self._derived(operation)

    @checked(predicate=function)
    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Keep the elements for which a function returns True; called with arguments as in `map` (as in tf.data).

        Args:
            predicate: Takes an element as in `map`; returns one truth value.

        Raises:
            InvalidArgumentError: for something that cannot be called.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(6).filter(lambda x: x % 2 == 0)]
            [0, 2, 4]
        """
        called_with_elements("predicate", predicate, self.operation)
        return self._derived(Filter(inputs=(self.operation,), predicate=predicate))

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
            >>> from dsnb.pipeline.dataset import Dataset
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
        return self._derived(operation)

    @checked()
    def unique(self) -> Dataset:
        """Drop elements that occurred before (as in tf.data, but for elements of every kind).

        Memory use grows with the number of distinct elements: short ones are kept, others as a 16-byte digest. 0.0 and
        -0.0 count as equal, and so do all NaNs.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique()]
            [1, 37, 2]
        """
        return self._derived(Unique(inputs=(self.operation,)))

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
            >>> from dsnb.pipeline.dataset import Dataset
            >>> sorted(int(x) for x in Dataset.range(5).shuffle(3, seed=1))
            [0, 1, 2, 3, 4]
        """
        operation = Shuffle(
            inputs=(self.operation,),
            size=buffer_size,
            seed=seed,
            reshuffle=reshuffle_each_iteration is not False,
        )
        return self._derived(operation)

    @checked(count=optional(integer(-1, hint="pass a count of 0 or more, or None for ever")))
    def repeat(self, count: int | None = None) -> Dataset:
        """Repeat the dataset `count` times; forever with None or -1 (as in tf.data).

        An endless repeat of a dataset that turns out to be empty ends. Each repetition runs the pipeline anew.

        Args:
            count: 0 or more; None or -1 for an endless dataset.

        Raises:
            InvalidArgumentError: the count is below -1.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(2).repeat(3)]
            [0, 1, 0, 1, 0, 1]
        """
        return self._derived(Repeat(inputs=(self.operation,), count=None if count == -1 else count))

    @checked(count=count_or_all)
    def take(self, count: int) -> Dataset:
        """Keep the first `count` elements, all of them with -1 (as in tf.data); later elements are not computed.

        Args:
            count: 0 or more, or -1.

        Raises:
            InvalidArgumentError: the count is below -1.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(10).take(3)]
            [0, 1, 2]
        """
        return self._derived(Take(inputs=(self.operation,), count=count))

    @checked(predicate=function)
    def take_while(self, predicate: Callable[..., Any]) -> Dataset:
        """Keep the elements before the first for which a function returns False; called as in `map` (as in tf.data).

        Args:
            predicate: Takes an element as in `map`; returns one truth value.

        Raises:
            InvalidArgumentError: for something that cannot be called.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(10).take_while(lambda x: x * x < 10)]
            [0, 1, 2, 3]
        """
        called_with_elements("predicate", predicate, self.operation)
        return self._derived(TakeWhile(inputs=(self.operation,), predicate=predicate))

    @checked(count=count_or_all)
    def skip(self, count: int) -> Dataset:
        """Drop the first `count` elements, all of them with -1 (as in tf.data).

        Args:
            count: 0 or more, or -1.

        Raises:
            InvalidArgumentError: the count is below -1.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(5).skip(3)]
            [3, 4]
        """
        return self._derived(Skip(inputs=(self.operation,), count=count))

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
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(10).shard(4, 1)]
            [1, 5, 9]
        """
        count, position_in_cycle = checked_shard(num_shards, index)
        return self._derived(Shard(inputs=(self.operation,), count=count, index=position_in_cycle))

    @checked(buffer_size=integer(AUTOTUNE, hint="pass a number of elements, or dsnb.AUTOTUNE"))
    def prefetch(self, buffer_size: int) -> Dataset:
        """Prepare up to `buffer_size` elements on a thread while the reader works (as in tf.data).

        Args:
            buffer_size: A number of elements; 0 for no look-ahead; `AUTOTUNE` to begin with two and double whenever the
                reader had to wait, up to 64 MiB.

        Raises:
            InvalidArgumentError: the size is negative and not AUTOTUNE.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(3).prefetch(2)]
            [0, 1, 2]
        """
        return self._derived(Prefetch(inputs=(self.operation,), size=buffer_size))

    @checked(options=options_rule)
    def with_options(self, options: Options) -> Dataset:
        """Set how the whole pipeline runs, and what its elements look like (as in tf.data).

        Args:
            options: Later settings override earlier ones; a setting of None changes nothing.

        Raises:
            InvalidArgumentError: for anything that is not a `dsnb.Options`.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> (array,) = Dataset.from_tensors([1, 2]).with_options(Options(writable=True))
            >>> array += 1
            >>> array
            array([2, 3])
        """
        operation = WithOptions(
            inputs=(self.operation,), deterministic=options.deterministic, writable=options.writable
        )
        return self._derived(operation)

    @checked()
    def options(self) -> Options:
        """Return the settings of this pipeline (as in tf.data).

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> Dataset.range(3).with_options(Options(deterministic=False)).options()
            Options(deterministic=False, writable=None)
        """
        return options_of(self.operation)

    @checked(dataset=dataset)
    def concatenate(self, dataset: Dataset) -> Dataset:
        """Append another dataset to this one (as in tf.data); sizes of dimensions may differ.

        Args:
            dataset: The dataset whose elements follow.

        Raises:
            InvalidArgumentError: both element specs are known and not compatible.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
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
        return self._derived(Concatenate(inputs=(self.operation, second)))

    @checked(start=integer(-(1 << 62), 1 << 62))
    def enumerate(self, start: int = 0) -> Dataset:
        """Pair each element with its number, an int64 that counts from `start` (as in tf.data).

        Args:
            start: The number of the first element.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [(int(i), x) for i, x in Dataset.from_tensor_slices(["a", "b"]).enumerate(5)]
            [(5, 'a'), (6, 'b')]
        """
        return self._derived(Enumerate(inputs=(self.operation,), start=start))

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
            >>> from dsnb.pipeline.dataset import Dataset
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
        return self._derived(operation)

    @checked(map_func=function)
    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """Make a dataset of each element, and read these datasets one after another (as in tf.data).

        Args:
            map_func: Takes an element as in `map`; returns a Dataset.

        Raises:
            InvalidArgumentError: while reading, if the function returns something that is not a Dataset.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(4).flat_map(Dataset.range)]
            [0, 0, 1, 0, 1, 2]
        """
        called_with_elements("map_func", map_func, self.operation)
        return self._derived(FlatMap(inputs=(self.operation,), function=map_func))

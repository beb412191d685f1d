"""The methods of `Dataset` that make one dataset out of another.

Names, arguments and meaning are those that tf.data documents, so that a user who comes from there changes imports and
little else; where dsnb differs, the docstring says so.
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
    """What can be done to a dataset; each method returns a new one and leaves this one as it is."""

    @checked(map_func=function, num_parallel_calls=parallel_calls)
    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Call a function for each element; its results are the elements of the new dataset.

        A tuple is unpacked into arguments; a dict, a named tuple and anything else is passed whole (as in tf.data).

        Args:
            map_func: Gets NumPy arrays and scalars, `str` and `bytes`; returns arrays, numbers or text, nested in
                tuples, dicts or lists. It may return one buffer again and again: what it can still write to is copied.
            num_parallel_calls: How many threads call it; None for the reading thread, `AUTOTUNE` to measure whether
                threads pay (for short functions that keep the interpreter they do not).
            deterministic: False lets results of several threads come as they are ready. None goes by `with_options`,
                else True.

        Raises:
            InvalidArgumentError: for something that cannot be called, or a wrong number of calls.

        An error of the function is raised in its element's place; the next `next` goes on with the following element.

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
        """Keep the elements for which a function says yes; called with arguments as in `map` (as in tf.data).

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
        """Call a function for each element with a state that it hands on to itself (as in tf.data).

        Args:
            initial_state: What the first call gets, in each pass; read as in `from_tensors`, its arrays read-only.
            scan_func: Gets the state and an element (a tuple is not unpacked); returns the next state, nested as the
                first one, and what is to be the element of the new dataset.

        Raises:
            InvalidArgumentError: for something that cannot be called, or a state that NumPy cannot read.

        An error of the function is raised in its element's place; the state stays, and the next `next` goes on.

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
        """Leave elements out that were there before (as in tf.data, for elements of every kind).

        What came is remembered: an element itself where it is short, else 16 bytes of it. One zero and one NaN count.

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
        """Hand out elements in random order, drawn from a buffer of the next `buffer_size` (as in tf.data).

        For a perfect shuffle the buffer must hold the whole dataset. The order for a seed does not depend on how fast
        anything is.

        Args:
            buffer_size: 1 or more elements; 1 keeps the order.
            seed: With a seed, pass k has the same order in every run.
            reshuffle_each_iteration: False for one order in all passes; without a seed that is one fixed order.

        Raises:
            InvalidArgumentError: for a buffer size below 1.

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
        """Go through the dataset `count` times; for ever with None or -1 (as in tf.data).

        An endless repeat of a dataset that turns out empty ends. Each pass runs the pipeline anew.

        Raises:
            InvalidArgumentError: for a count below -1.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(2).repeat(3)]
            [0, 1, 0, 1, 0, 1]
        """
        return self._derived(Repeat(inputs=(self.operation,), count=None if count == -1 else count))

    @checked(count=count_or_all)
    def take(self, count: int) -> Dataset:
        """Keep the first `count` elements, all of them with -1 (as in tf.data); nothing behind them is computed.

        Raises:
            InvalidArgumentError: for a count below -1.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(10).take(3)]
            [0, 1, 2]
        """
        return self._derived(Take(inputs=(self.operation,), count=count))

    @checked(predicate=function)
    def take_while(self, predicate: Callable[..., Any]) -> Dataset:
        """Keep the elements before the first for which a function says no; called as in `map` (as in tf.data).

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
        """Leave the first `count` elements out, all of them with -1 (as in tf.data).

        Raises:
            InvalidArgumentError: for a count below -1.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(5).skip(3)]
            [3, 4]
        """
        return self._derived(Skip(inputs=(self.operation,), count=count))

    @checked(num_shards=integer(), index=integer())
    def shard(self, num_shards: int, index: int) -> Dataset:
        """Keep the elements at `index`, `index + num_shards`, and so on (as in tf.data).

        All shards together have each element once, if each of them sees the elements in one order: shard before an
        unseeded `shuffle`.

        Args:
            num_shards: 1 or more; or `dsnb.SHARD_HINT`, for the workers of a job in the mode `ShardingPolicy.HINT` to
                put in how many they are, and which one.
            index: 0 to `num_shards - 1`; with `SHARD_HINT` it does not matter.

        Raises:
            InvalidArgumentError: for numbers that can never be right. While reading FailedPreconditionError, when
                nobody filled the hint in.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(10).shard(4, 1)]
            [1, 5, 9]
        """
        count, position_in_cycle = checked_shard(num_shards, index)
        return self._derived(Shard(inputs=(self.operation,), count=count, index=position_in_cycle))

    @checked(buffer_size=integer(AUTOTUNE, hint="pass a number of elements, or dsnb.AUTOTUNE"))
    def prefetch(self, buffer_size: int) -> Dataset:
        """Have up to `buffer_size` elements made ready on a thread while the reader works (as in tf.data).

        Args:
            buffer_size: A number of elements; 0 for no look-ahead; `AUTOTUNE` to begin with two and hold twice as many
                whenever the reader had to wait, up to 64 MiB.

        Raises:
            InvalidArgumentError: for a negative size other than AUTOTUNE.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(3).prefetch(2)]
            [0, 1, 2]
        """
        return self._derived(Prefetch(inputs=(self.operation,), size=buffer_size))

    @checked(options=options_rule)
    def with_options(self, options: Options) -> Dataset:
        """Set how the whole pipeline runs, and what its reader gets (as in tf.data).

        Args:
            options: Later settings hold against earlier ones; what it leaves at None stays.

        Raises:
            InvalidArgumentError: for anything that is no `dsnb.Options`.

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
        """The settings of this pipeline (as in tf.data).

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> Dataset.range(3).with_options(Options(deterministic=False)).options()
            Options(deterministic=False, writable=None)
        """
        return options_of(self.operation)

    @checked(dataset=dataset)
    def concatenate(self, dataset: Dataset) -> Dataset:
        """Put another dataset behind this one (as in tf.data); sizes of dimensions may differ.

        Raises:
            InvalidArgumentError: when both element specs are known and do not go together.

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
        """Make a dataset of each element and take `block_length` elements of `cycle_length` of them by turns.

        The order is tf.data's: a dataset that ends leaves its place in the cycle, which gets the next dataset when its
        turn comes again.

        Args:
            map_func: Gets an element as in `map`, returns a Dataset.
            cycle_length: How many datasets are read by turns; None and `AUTOTUNE` mean 8, on every machine.
            block_length: How many elements at a turn; None means 1.
            num_parallel_calls: How many of the cycle's datasets are read ahead on threads of their own; `AUTOTUNE` for
                all of them.
            deterministic: False passes a dataset over that has nothing ready. None goes by `with_options`, else True.

        Raises:
            InvalidArgumentError: for lengths below 1. While reading: when the function returns something else.

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
        """Make a dataset of each element and put them one behind the other (as in tf.data).

        Raises:
            InvalidArgumentError: while reading, when the function returns something that is no Dataset.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(4).flat_map(Dataset.range)]
            [0, 0, 1, 0, 1, 2]
        """
        called_with_elements("map_func", map_func, self.operation)
        return self._derived(FlatMap(inputs=(self.operation,), function=map_func))
